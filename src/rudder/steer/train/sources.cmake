# The part of the room steer that lies in this folder.
set(train_sources train/directions.cpp train/vector_files.cpp)
