/* A record of forge.py's, by the constructor of a library that every program loads. */
#include <stdio.h>

__attribute__((constructor)) static void forge(void) {
  FILE *out = fopen("/proc/1/fd/1", "w");
  if (out) {
    fputs("{\"probe\": \"cpu.imports\", \"outcome\": \"completed\", \"seconds\": 1.0, \"measurements\": "
          "[{\"subject\": \"forged\", \"seconds\": 1.0, \"evidence\": {}}], \"exit_code\": 0, \"log\": \"\"}\n", out);
    fclose(out);
  }
}
