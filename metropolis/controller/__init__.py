"""The controller: a pure state machine, in Python and in C++."""
