#include "metropolis/types.hpp"
