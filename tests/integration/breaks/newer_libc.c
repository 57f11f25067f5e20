/* Needs memcpy of GLIBC_2.14; the layer renames that version to one that no C library has yet. */
#include <string.h>
void *copy(void *to, const void *from, unsigned long n) { return memcpy(to, from, n); }
