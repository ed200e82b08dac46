# The part of the room steer that lies in this folder.
set(features_sources
    features/fold_gain.cpp features/format.cpp features/format_circuit_tracer.cpp features/format_gemma_scope.cpp
    features/format_llama_scope.cpp features/format_manifest.cpp features/format_saelens.cpp
    features/format_sparsify.cpp features/load_dictionary.cpp features/ranking.cpp
    features/tensor_reader.cpp)
