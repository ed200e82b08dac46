// The commands of `rudder vectors`. Each parses its own flags and returns the exit status.
#pragma once

namespace rudder::apps {

int vectors_train(int argc, char** argv);
int vectors_eval(int argc, char** argv);

}  // namespace rudder::apps
