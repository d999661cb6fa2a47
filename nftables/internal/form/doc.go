// Package form is the form in which nf_tables holds an instance: its sets, chains, rules and
// elements, and the version. It has no connection to the kernel. The encoder of an object stands
// beside its decoder.
//
// [Hooks.Program] makes the chains and rules of a table, and [SetsOf] its sets. They depend on the
// features in use, a [Shape], and not on the services. A [Writer] writes the elements of frontends.
package form
