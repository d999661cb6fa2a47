// Package read reads what the kernel holds of an instance, and what that means in the model.
//
// A [Reader] reads tables into a [Reading] each: sets, chains, rules and settings first
// ([Reader.Tables]), then elements, by a dump or by questions about the wanted ones
// ([Reader.Elements]). [Snapshot.Merge] makes a table of the model from the readings of both
// families. Elements without a meaning are drift. [Parts] reads what some owners hold, and nothing
// else, through the index of owners.
package read
