// Package form is the representation of an instance in nf_tables: its sets, chains, rules and
// elements, and the version. It has no connection to the kernel. The encoder of an object is next
// to its decoder.
//
// [Hooks.Program] returns the chains and rules of a table, and [SetsOf] its sets. They depend on
// the features in use, a [Shape], and not on the services. A [Writer] writes the elements of
// frontends.
package form
