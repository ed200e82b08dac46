# The part of the room steer that lies in this folder.
set(capture_sources
    capture/backlog.cpp capture/base64.cpp capture/consumer.cpp capture/consumers.cpp capture/dispatcher.cpp capture/feature_ask.cpp
    capture/filesystem_consumer.cpp capture/host_feature_reader.cpp capture/kept_consumer.cpp capture/kept_rows.cpp capture/key_file.cpp capture/lane.cpp capture/logging_consumer.cpp
    capture/pattern_ask.cpp capture/plugin_consumer.cpp capture/response_consumer.cpp capture/response_options.cpp capture/result.cpp
    capture/result_json.cpp capture/routed_experts_consumer.cpp capture/row_numbers.cpp capture/settings.cpp capture/sha256.cpp capture/session_features.cpp capture/session_lens.cpp capture/shard.cpp capture/slug.cpp capture/spec.cpp
    capture/spec_table.cpp capture/spill_file.cpp capture/store.cpp capture/watch.cpp capture/writer_pool.cpp)
