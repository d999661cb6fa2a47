// Package nftwire holds what the tables of the nftables and the ipvs backend are made of, as bytes: elements of sets, with their keys, data and comments, and
// the expressions of rules. Which tables there are is the business of the backends.
//
// Numbers of attributes and of enums are those of include/uapi/linux/netfilter/nf_tables.h.
package nftwire
