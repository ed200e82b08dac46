// The commands of the rudder binary. Each parses its own flags, prints its own errors to standard
// error and returns the process's exit status: 0, 1 (failed) or 2 (bad arguments).
#pragma once

namespace rudder::apps {

// argv[0] is the command's name ("serve").
int run_serve(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_chat(int argc, char** argv);
int run_tokenize(int argc, char** argv);
int run_info(int argc, char** argv);
int run_make_model(int argc, char** argv);
int run_pull(int argc, char** argv);
int run_models(int argc, char** argv);
int run_doctor(int argc, char** argv);
int run_replay(int argc, char** argv);
int run_vectors(int argc, char** argv);
int run_features(int argc, char** argv);
int run_bench(int argc, char** argv);

}  // namespace rudder::apps
