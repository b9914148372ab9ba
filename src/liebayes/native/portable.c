/* The rule for any processor: whatever vectors its baseline has. */
#define CHUNK_FUNCTION liebayes_chunk_portable
#define FINITE_FUNCTION liebayes_finite_portable
#include "rule.h"
