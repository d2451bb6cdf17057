/* Lets the program under callgrind say where a measurement begins and ends. */
#include <valgrind/callgrind.h>

void begin(void) {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
}

void end(const char* label) {
  CALLGRIND_DUMP_STATS_AT(label);
  CALLGRIND_STOP_INSTRUMENTATION;
}
