#include "rudder/server/admin/exposition.h"

#include <gtest/gtest.h>

#include <limits>

#include "rudder/server/testing/exposition_validator.h"

namespace rudder::server {
namespace {

TEST(Exposition, WritesTheTextFormat) {
  Exposition out("rudder", label("model_name", "a\"b\\c\nd"));
  out.counter("tokens_total", "Tokens.", 12);
  out.begin("requests_total", "counter", "Requests.");
  out.sample(label("reason", "stop"), 1e16);
  engine::Histogram histogram;
  histogram.bounds = {0.5, 1};
  histogram.counts = {1, 2, 3};
  histogram.sum = 4.25;
  histogram.count = 6;
  out.histogram("time_seconds", "Time.", histogram);
  out.plain("process_open_fds", "gauge", "Descriptors.", 7);
  EXPECT_EQ(out.take(),
            "# HELP rudder:tokens_total Tokens.\n# TYPE rudder:tokens_total counter\n"
            "rudder:tokens_total{model_name=\"a\\\"b\\\\c\\nd\"} 12\n"
            "# HELP rudder:requests_total Requests.\n# TYPE rudder:requests_total counter\n"
            "rudder:requests_total{model_name=\"a\\\"b\\\\c\\nd\",reason=\"stop\"} 1e+16\n"
            "# HELP rudder:time_seconds Time.\n# TYPE rudder:time_seconds histogram\n"
            "rudder:time_seconds_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"0.5\"} 1\n"
            "rudder:time_seconds_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"1.0\"} 3\n"
            "rudder:time_seconds_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 6\n"
            "rudder:time_seconds_sum{model_name=\"a\\\"b\\\\c\\nd\"} 4.25\n"
            "rudder:time_seconds_count{model_name=\"a\\\"b\\\\c\\nd\"} 6\n"
            "# HELP process_open_fds Descriptors.\n# TYPE process_open_fds gauge\n"
            "process_open_fds 7\n");
}

TEST(Exposition, AnEmptyHistogramIsValid) {
  Exposition out("vllm", "");
  out.histogram("x", "X.", {});
  const std::string text = out.take();
  EXPECT_EQ(check_exposition(text).problem, "") << text;
}

TEST(ExpositionValidator, SeesWhatIsWrong) {
  const std::string head = "# HELP a_total A.\n# TYPE a_total counter\n";
  EXPECT_EQ(check_exposition(head + "a_total 1\n").problem, "");
  for (const std::string& bad :
       {head + "a_total 1", head + "a_total one\n", head + "a_total 1\na_total 1\n",
        head + "b_total 1\n", head + "a_total{x=1} 1\n", head + "a_total{x=\"1\" 1\n",
        head + "a_total{x=\"1\",x=\"2\"} 1\n", head + "a_total -1\n", head + head,
        std::string("# TYPE a_total counter\na_total 1\n"), head + "\n",
        std::string("# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} "
                    "1\nh_sum 0\nh_count 1\n"),
        std::string(
            "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 0\nh_count 1\n")}) {
    EXPECT_NE(check_exposition(bad).problem, "") << bad;
  }
}

}  // namespace
}  // namespace rudder::server
