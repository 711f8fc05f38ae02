// Measures how late this machine currently runs a thread: other work on the machine delays
// everything that a test measures.
#pragma once
#include "ferry/core/deadline.h"

namespace ferry::tests {

// Measures from now on, by a thread that lives as long as the process: it sleeps for 10 ms and
// works for about one, again and again. Later calls only forget what was measured before.
void RestartLoadMeter();

// The largest delay of a round since the last restart; 0 if there was none.
milliseconds WorstLateness();

}  // namespace ferry::tests
