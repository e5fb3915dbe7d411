//! Bindings to libibverbs and librdmacm, loaded at run time.
