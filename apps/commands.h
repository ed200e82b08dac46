// The commands of the rudder binary, as run_command.h says what a command does.
#pragma once

namespace rudder::apps {

// argv[0] is the command's name ("serve").
int run_serve(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_chat(int argc, char** argv);
int run_tokenize(int argc, char** argv);
int run_info(int argc, char** argv);
int run_make_model(int argc, char** argv);
int run_quantise(int argc, char** argv);
int run_pull(int argc, char** argv);
int run_models(int argc, char** argv);
int run_doctor(int argc, char** argv);
int run_replay(int argc, char** argv);
int run_vectors(int argc, char** argv);
int run_features(int argc, char** argv);
int run_eval(int argc, char** argv);
// What `rudder serve --engine-process` starts; nobody else does.
int run_engine_process(int argc, char** argv);
int run_bench(int argc, char** argv);  // starts rudder-bench in its place

}  // namespace rudder::apps
