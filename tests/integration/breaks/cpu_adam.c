/* DeepSpeed's CPU Adam in miniature: loops that a compiler turns into AVX-512 when told to. */
#include <math.h>

void adam_step(float *p, const float *g, float *m, float *v, int n, float b1, float b2, float lr) {
    for (int i = 0; i < n; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] -= lr * m[i] / (sqrtf(v[i]) + 1e-8f);
    }
}
