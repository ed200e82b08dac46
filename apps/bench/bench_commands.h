// The measurements of `rudder bench NAME`; each has the form of a command (commands.h).
#pragma once

namespace rudder::apps {

int bench_adapters(int argc, char** argv);
int bench_latency(int argc, char** argv);
int bench_throughput(int argc, char** argv);
int bench_serve(int argc, char** argv);
int bench_constraint(int argc, char** argv);
int bench_ops(int argc, char** argv);
int bench_scenarios(int argc, char** argv);
int bench_speculation(int argc, char** argv);
int bench_steering(int argc, char** argv);
int bench_tiers(int argc, char** argv);
int bench_trace(int argc, char** argv);

}  // namespace rudder::apps
