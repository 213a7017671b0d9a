// Counts the heap allocations of the test program: a program that refers to this gets a global
// operator new that counts.
#pragma once

#include <cstddef>

namespace larder {

// Calls of operator new (every form) since the program began, by all threads.
size_t allocations_so_far();

}  // namespace larder
