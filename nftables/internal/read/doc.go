// Package read reads the state of an instance in the kernel, and interprets it in the model.
//
// A [Reader] reads each table into a [Reading]: sets, chains, rules and settings first
// ([Reader.Tables]), then elements, by a dump or by requests for the desired elements
// ([Reader.Elements]). [Snapshot.Merge] builds a table of the model from the readings of both
// families. Elements without a meaning are drift. [Parts] reads only the objects of some owners,
// through the index of owners.
package read
