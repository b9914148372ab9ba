/* The rule for any processor, with the vectors of its baseline instruction set. */
#define CHUNK_FUNCTION liebayes_chunk_portable
#include "rule.h"
