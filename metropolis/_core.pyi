"""Types of the C++ extension."""

# --- controller (cpp/bindings/bind_controller.cpp)

# --- instance (cpp/bindings/bind_instance.cpp)

# --- replay (cpp/bindings/bind_replay.cpp)
