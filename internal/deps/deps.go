// Package deps pins dependencies until their users exist.
package deps

import (
	_ "github.com/google/nftables/expr"
	_ "github.com/google/nftables/xt"
	_ "github.com/mdlayher/genetlink"
	_ "github.com/mdlayher/netlink"
	_ "github.com/mdlayher/netlink/nltest"
	_ "github.com/mdlayher/genetlink/genltest"
	_ "github.com/stretchr/testify/require"
	_ "github.com/ti-mo/conntrack"
	_ "github.com/ti-mo/netfilter"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "golang.org/x/sys/unix"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/discovery/v1"
	_ "k8s.io/apimachinery/pkg/api/resource"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "k8s.io/apimachinery/pkg/util/intstr"
	_ "sigs.k8s.io/yaml"
	_ "k8s.io/api/networking/v1"
)
