//! Tests of the proxy over loop carriers.
