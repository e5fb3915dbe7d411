//! Debian's Open MPI over this project's provider: point-to-point and collectives, through shared
//! memory and over verbs.

all_jobs!(Open);
