// The commands of `rudder eval`, on the main thread. argv[0] is the
// command's name.
#pragma once

namespace rudder::apps {

int eval_perplexity(int argc, char** argv);
int eval_kl(int argc, char** argv);

}  // namespace rudder::apps
