package main

// effect is the program's treatment of a field or flag.
type effect string

const (
	honoured effect = "honoured"  // as in kube-proxy, or as text says
	noEffect effect = "no effect" // is ignored; if it is not the default, the log says so
)

// field is a field of the configuration, with its flag, or a flag that has no field.
type field struct {
	field  string // as in the file; empty if only a flag exists
	flag   string // without dashes; empty if there is none
	effect effect
	// text describes the effect for the README. An honoured field has a text only if the effect is
	// not obvious.
	text string
}

// fields lists all settings of kube-proxy. The flags, the reading of the configuration and the
// table of the README come from this list. A field that is not in the list does not exist for the
// program. A test compares the list with the type and with the flags of kube-proxy.
var fields = []field{
	{"apiVersion", "", honoured, "must be `" + apiVersion + "`"},
	{"kind", "", honoured, "must be `" + kind + "`"},
	{"featureGates", "feature-gates", honoured, "those of logging; `AllowServiceExternalIPs=" +
		"false` is refused; of others the log says that they have no effect"},

	{"clientConnection.kubeconfig", "kubeconfig", honoured,
		"empty, and no `--master`: the service account of the pod"},
	{"clientConnection.acceptContentTypes", "", honoured, ""},
	{"clientConnection.contentType", "kube-api-content-type", honoured, ""},
	{"clientConnection.qps", "kube-api-qps", honoured, ""},
	{"clientConnection.burst", "kube-api-burst", honoured, ""},

	{"logging.format", "logging-format", honoured, "`text` or `json`"},
	{"logging.flushFrequency", "log-flush-frequency", honoured, ""},
	{"logging.verbosity", "v", honoured, "kernlb's own records: 4 adds each request to the kernel"},
	{"logging.vmodule", "vmodule", honoured, ""},
	{"logging.options.text.splitStream", "log-text-split-stream", honoured, ""},
	{"logging.options.text.infoBufferSize", "log-text-info-buffer-size", honoured, ""},
	{"logging.options.json.splitStream", "log-json-split-stream", honoured, ""},
	{"logging.options.json.infoBufferSize", "log-json-info-buffer-size", honoured, ""},

	{"hostnameOverride", "hostname-override", honoured, "the flag counts beside a file, too"},
	{"bindAddress", "bind-address", honoured, "the node's primary address of its family; nothing " +
		"is bound to it"},
	{"healthzBindAddress", "healthz-bind-address", honoured, "`/healthz` and `/livez`"},
	{"metricsBindAddress", "metrics-bind-address", honoured, "`/metrics`, `/healthz`, " +
		"`/proxyMode` and `/configz`"},
	{"bindAddressHardFail", "bind-address-hard-fail", honoured, ""},
	{"enableProfiling", "profiling", honoured, "`/debug/pprof` at metricsBindAddress"},
	{"showHiddenMetricsForVersion", "show-hidden-metrics-for-version", noEffect,
		"no metric is hidden"},

	{"mode", "proxy-mode", honoured, "`iptables`, `nftables` or `ipvs`, on Windows " +
		"`kernelspace`; empty: `iptables`, on Windows `kernelspace`"},
	{"iptables.masqueradeBit", "iptables-masquerade-bit", honoured,
		"in the mode iptables; ipvs needs no mark"},
	{"iptables.masqueradeAll", "masquerade-all", honoured, "in the modes iptables and ipvs"},
	{"iptables.localhostNodePorts", "iptables-localhost-nodeports", honoured,
		"in the mode iptables"},
	{"iptables.syncPeriod", "iptables-sync-period", honoured, syncText},
	{"iptables.minSyncPeriod", "iptables-min-sync-period", honoured,
		minSyncText + "; empty: 200 ms"},

	{"ipvs.syncPeriod", "ipvs-sync-period", honoured,
		"how often all is read and compared, the longest wait before what failed is tried again, " +
			"and half of what makes /healthz say 503"},
	{"ipvs.minSyncPeriod", "ipvs-min-sync-period", honoured, minSyncText},
	{"ipvs.scheduler", "ipvs-scheduler", honoured, "with its options, such as `mh+port`; empty: " +
		"`rr`"},
	{"ipvs.excludeCIDRs", "ipvs-exclude-cidrs", honoured,
		"virtual servers of others are left " +
			"alone, unless a service must be at their address"},
	{"ipvs.strictARP", "ipvs-strict-arp", honoured,
		"does not answer ARP for addresses of services, which are then on the device " +
			"`kernlb-ipvs0`"},
	{"ipvs.tcpTimeout", "ipvs-tcp-timeout", honoured, ""},
	{"ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", honoured, ""},
	{"ipvs.udpTimeout", "ipvs-udp-timeout", honoured, ""},

	{"nftables.masqueradeBit", "", honoured, "in the mode nftables"},
	{"nftables.masqueradeAll", "masquerade-all", honoured, "in the mode nftables"},
	{"nftables.syncPeriod", "iptables-sync-period", honoured, syncText},
	{"nftables.minSyncPeriod", "iptables-min-sync-period", honoured,
		minSyncText + "; empty: 10 ms"},

	{"winkernel.networkName", onWindows("network-name"), honoured, inKernel +
		"`--network-name`; empty: the variable `KUBE_NETWORK`"},
	{"winkernel.sourceVip", onWindows("source-vip"), honoured, inKernel + "`--source-vip`"},
	{"winkernel.enableDSR", onWindows("enable-dsr"), honoured, inKernel + "`--enable-dsr`"},
	{"winkernel.rootHnsEndpointName", onWindows("root-hnsendpoint-name"), honoured, inKernel +
		"`--root-hnsendpoint-name`; empty: `cbr0`"},
	{"winkernel.forwardHealthCheckVip", onWindows("forward-healthcheck-vip"), honoured, inKernel +
		"`--forward-healthcheck-vip`"},
	{"windowsRunAsService", onWindows("windows-service"), honoured,
		"on Windows, where it has the flag `--windows-service`"},

	{"detectLocalMode", "detect-local-mode", honoured, "all four"},
	{"detectLocal.bridgeInterface", "pod-bridge-interface", honoured, ""},
	{"detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", honoured, ""},
	{"clusterCIDR", "cluster-cidr", honoured, ""},
	{"nodePortAddresses", "nodeport-addresses", honoured,
		"in the mode nftables `primary`, if empty"},

	{"oomScoreAdj", "oom-score-adj", honoured, "if that is not allowed, the log says so"},
	{"conntrack.maxPerCore", "conntrack-max-per-core", honoured, lowered},
	{"conntrack.min", "conntrack-min", honoured, ""},
	{"conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", honoured, lowered},
	{"conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", honoured, lowered},
	{"conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", honoured, ""},
	{"conntrack.udpTimeout", "conntrack-udp-timeout", honoured, lowered},
	{"conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", honoured, lowered},
	{"configSyncPeriod", "config-sync-period", honoured, "how often known objects are looked at " +
		"again"},
	{"portRange", "", noEffect, "kube-proxy has not used it since its userspace mode went"},

	{"", "config", honoured, "the file; beside it, flags of fields have no effect, which the " +
		"log says, but for those of logging and `--hostname-override`"},
	{"", "write-config-to", honoured, "writes the configuration, with defaults, and ends"},
	{"", "cleanup", honoured, "deletes what this program has in the kernel, in all modes, and " +
		"ends; what kube-proxy has stays"},
	{"", "init-only", honoured, "sets conntrack's settings, loads modules, and ends"},
	{"", "master", honoured, "takes the place of the server in the kubeconfig file"},
	{"", "healthz-port", honoured, "the port of healthzBindAddress, if it has none; 0 " +
		"turns that server off"},
	{"", "metrics-port", honoured, "the port of metricsBindAddress, if it has none; 0 " +
		"turns that server off"},
	{"", "boot-id-file", noEffect, machineID},
	{"", "machine-id-file", noEffect, machineID},
	{"", "version", honoured, ""},
	{"", "help", honoured, ""},
}

// dropped are fields in files for older versions of kube-proxy, which still start it, with the
// reasons why they have no effect.
var dropped = map[string]string{
	"conntrack.max":          "maxPerCore and min took its place",
	"metadata":               "a configuration is not stored in the API",
	"resourceContainer":      "kube-proxy leaves its cgroup to the kubelet",
	"udpIdleTimeout":         userspace,
	"udpTimeoutMilliseconds": userspace,
}

// droppedFlags are flags that older versions of kube-proxy had, with the reasons why they have no
// effect. Static pods and units that were written for these versions still start the program.
var droppedFlags = []struct {
	name   string
	toggle bool // needs no value
	why    string
}{
	{"add-dir-header", true, klogFlag},
	{"alsologtostderr", true, klogFlag},
	{"cleanup-ipvs", true, "--cleanup deletes virtual servers, too"},
	{"conntrack-max", false, "--conntrack-max-per-core and --conntrack-min took its place"},
	{"log-backtrace-at", false, klogFlag},
	{"log-dir", false, klogFlag},
	{"log-file", false, klogFlag},
	{"log-file-max-size", false, klogFlag},
	{"logtostderr", true, klogFlag},
	{"one-output", true, klogFlag},
	{"proxy-port-range", false, userspace},
	{"resource-container", false, "kube-proxy leaves its cgroup to the kubelet"},
	{"skip-headers", true, klogFlag},
	{"skip-log-headers", true, klogFlag},
	{"stderrthreshold", false, klogFlag},
	{"udp-timeout", false, userspace},
}

const (
	klogFlag  = "the log goes to standard error"
	userspace = "it was for the mode userspace"
	inKernel  = "in the mode kernelspace; on Windows it has the flag "
	syncText  = "the longest wait before what failed is tried again, and half of what makes " +
		"/healthz say 503"
	minSyncText = "the least time between two syncs; a change after a quiet time does not wait"
	machineID   = "kube-proxy does not use it either"
	lowered     = "what an administrator raised above it stays"
)
