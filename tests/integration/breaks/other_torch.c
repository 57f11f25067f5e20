/* An extension for a torch whose c10::Error had another constructor: what flash-attn built for another release needs. */
void _ZN3c105ErrorC1ENS_14SourceLocationESsPKv(void);
void attend(void) { _ZN3c105ErrorC1ENS_14SourceLocationESsPKv(); }
