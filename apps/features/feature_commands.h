// The commands of `rudder features`. Each parses its own flags and returns the exit status.
#pragma once

namespace rudder::apps {

int features_rank(int argc, char** argv);
int features_top(int argc, char** argv);
int features_eval(int argc, char** argv);

}  // namespace rudder::apps
