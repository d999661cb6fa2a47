package main

// effect says how the program treats a field or flag.
type effect uint8

const (
	honoured effect = iota // as in kube-proxy, or as text says
	noEffect               // is accepted and ignored; if it is not the default, the log says so
)

func (e effect) String() string {
	return [...]string{"honoured", "no effect"}[e]
}

// field is one field of the configuration, with its flag, or a flag that has no field.
type field struct {
	field  string // as in the file; empty if only a flag exists
	flag   string // without dashes; empty if there is none
	effect effect
	// text describes the effect for the README. An honoured field has a text only if the effect is
	// not obvious.
	text string
	// use reads the field into the settings. It returns an error if the value is not possible.
	use func(*config, *settings) error
}

// fields lists all settings of kube-proxy. The flags, the reading of the configuration and the
// table of the README come from it. A field that is not here does not exist for the program. A test
// compares the list with the type and with the flags of kube-proxy.
var fields = []field{
	{"apiVersion", "", honoured, "must be `" + apiVersion + "`", useAPIVersion},
	{"kind", "", honoured, "must be `" + kind + "`", useKind},
	{"featureGates", "feature-gates", honoured, "those of logging; `AllowServiceExternalIPs=" +
		"false` is refused; of others the log says that they have no effect", useGates},

	{"clientConnection.kubeconfig", "kubeconfig", honoured,
		"empty, and no `--master`: the service account of the pod", useClient},
	{"clientConnection.acceptContentTypes", "", honoured, "", useClient},
	{"clientConnection.contentType", "kube-api-content-type", honoured, "", useClient},
	{"clientConnection.qps", "kube-api-qps", honoured, "", useClient},
	{"clientConnection.burst", "kube-api-burst", honoured, "", useClient},

	{"logging.format", "logging-format", honoured, "`text` or `json`", useLogging},
	{"logging.flushFrequency", "log-flush-frequency", honoured, "", useLogging},
	{"logging.verbosity", "v", honoured, "kernlb's own records: 4 adds each request to the kernel",
		useLogging},
	{"logging.vmodule", "vmodule", honoured, "", useLogging},
	{"logging.options.text.splitStream", "log-text-split-stream", honoured, "", useLogging},
	{"logging.options.text.infoBufferSize", "log-text-info-buffer-size", honoured, "", useLogging},
	{"logging.options.json.splitStream", "log-json-split-stream", honoured, "", useLogging},
	{"logging.options.json.infoBufferSize", "log-json-info-buffer-size", honoured, "", useLogging},

	{"hostnameOverride", "hostname-override", honoured, "the flag counts beside a file, too",
		useHostname},
	{"bindAddress", "bind-address", honoured, "the node's primary address of its family; nothing " +
		"is bound to it", useBindAddress},
	{"healthzBindAddress", "healthz-bind-address", honoured, "`/healthz` and `/livez`",
		useHealthz},
	{"metricsBindAddress", "metrics-bind-address", honoured, "`/metrics`, `/healthz`, " +
		"`/proxyMode` and `/configz`", useMetrics},
	{"bindAddressHardFail", "bind-address-hard-fail", honoured, "", useHardFail},
	{"enableProfiling", "profiling", honoured, "`/debug/pprof` at metricsBindAddress",
		useProfiling},
	{"showHiddenMetricsForVersion", "show-hidden-metrics-for-version", noEffect,
		"no metric is hidden", nil},

	{"mode", "proxy-mode", honoured, "`iptables`, `nftables` or `ipvs`, on Windows " +
		"`kernelspace`; empty: `iptables`, on Windows `kernelspace`",
		useMode},
	{"iptables.masqueradeBit", "iptables-masquerade-bit", honoured,
		"in the mode iptables; ipvs needs no mark", useIPTables},
	{"iptables.masqueradeAll", "masquerade-all", honoured, "in the modes iptables and ipvs",
		useIPTables},
	{"iptables.localhostNodePorts", "iptables-localhost-nodeports", honoured,
		"in the mode iptables", useIPTables},
	{"iptables.syncPeriod", "iptables-sync-period", honoured, syncText, useIPTables},
	{"iptables.minSyncPeriod", "iptables-min-sync-period", honoured,
		minSyncText + "; empty: 200 ms", useIPTables},

	{"ipvs.syncPeriod", "ipvs-sync-period", honoured,
		"how often all is read and compared, the longest wait before what failed is tried again, " +
			"and half of what makes /healthz say 503", useIPVS},
	{"ipvs.minSyncPeriod", "ipvs-min-sync-period", honoured, minSyncText, useIPVS},
	{"ipvs.scheduler", "ipvs-scheduler", honoured, "with its options, such as `mh+port`; empty: " +
		"`rr`", useIPVS},
	{"ipvs.excludeCIDRs", "ipvs-exclude-cidrs", honoured,
		"virtual servers of others are left " +
			"alone, unless a service must be at their address", useIPVSExclude},
	{"ipvs.strictARP", "ipvs-strict-arp", honoured,
		"adds the device `kernlb-ipvs0` with the addresses of services, which it is about",
		useIPVS},
	{"ipvs.tcpTimeout", "ipvs-tcp-timeout", honoured, "", useIPVS},
	{"ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", honoured, "", useIPVS},
	{"ipvs.udpTimeout", "ipvs-udp-timeout", honoured, "", useIPVS},

	{"nftables.masqueradeBit", "", honoured, "in the mode nftables", useNFTables},
	{"nftables.masqueradeAll", "masquerade-all", honoured, "in the mode nftables", useNFTables},
	{"nftables.syncPeriod", "iptables-sync-period", honoured, syncText, useNFTables},
	{"nftables.minSyncPeriod", "iptables-min-sync-period", honoured,
		minSyncText + "; empty: 10 ms", useNFTables},

	{"winkernel.networkName", onWindows("network-name"), honoured, inKernel +
		"`--network-name`; empty: the variable `KUBE_NETWORK`", useKernel},
	{"winkernel.sourceVip", onWindows("source-vip"), honoured, inKernel + "`--source-vip`",
		useKernel},
	{"winkernel.enableDSR", onWindows("enable-dsr"), honoured, inKernel + "`--enable-dsr`",
		useKernel},
	{"winkernel.rootHnsEndpointName", onWindows("root-hnsendpoint-name"), honoured, inKernel +
		"`--root-hnsendpoint-name`; empty: `cbr0`", useKernel},
	{"winkernel.forwardHealthCheckVip", onWindows("forward-healthcheck-vip"), honoured, inKernel +
		"`--forward-healthcheck-vip`", useKernel},
	{"windowsRunAsService", onWindows("windows-service"), honoured,
		"on Windows, where it has the flag `--windows-service`", useService},

	{"detectLocalMode", "detect-local-mode", honoured, "all four", useDetectLocal},
	{"detectLocal.bridgeInterface", "pod-bridge-interface", honoured, "", useDetectLocal},
	{"detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", honoured, "", useDetectLocal},
	{"clusterCIDR", "cluster-cidr", honoured, "", useDetectLocal},
	{"nodePortAddresses", "nodeport-addresses", honoured,
		"in the mode nftables `primary`, if empty", useNodePortAddresses},

	{"oomScoreAdj", "oom-score-adj", honoured, "if that is not allowed, the log says so", useOOM},
	{"conntrack.maxPerCore", "conntrack-max-per-core", honoured, lowered, useConntrack},
	{"conntrack.min", "conntrack-min", honoured, "", useConntrack},
	{"conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", honoured, lowered,
		useConntrack},
	{"conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", honoured, lowered,
		useConntrack},
	{"conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", honoured, "", useConntrack},
	{"conntrack.udpTimeout", "conntrack-udp-timeout", honoured, lowered, useConntrack},
	{"conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", honoured, lowered, useConntrack},
	{"configSyncPeriod", "config-sync-period", honoured, "how often known objects are looked at " +
		"again", useConfigSync},
	{"portRange", "", noEffect, "kube-proxy has not used it since its userspace mode went", nil},

	{"", "config", honoured, "the file; beside it, flags of fields have no effect, which the " +
		"log says, but for those of logging and `--hostname-override`", nil},
	{"", "write-config-to", honoured, "writes the configuration, with defaults, and ends", nil},
	{"", "cleanup", honoured, "deletes what this program has in the kernel, in all modes, and " +
		"ends; what kube-proxy has stays", nil},
	{"", "init-only", honoured, "sets conntrack's settings, loads modules, and ends", nil},
	{"", "master", honoured, "takes the place of the server in the kubeconfig file", nil},
	{"", "healthz-port", honoured, "0: nothing is served at healthzBindAddress", nil},
	{"", "metrics-port", honoured, "0: nothing is served at metricsBindAddress", nil},
	{"", "boot-id-file", noEffect, machineID, nil},
	{"", "machine-id-file", noEffect, machineID, nil},
	{"", "version", honoured, "", nil},
	{"", "help", honoured, "", nil},
}

const (
	inKernel = "in the mode kernelspace; on Windows it has the flag "
	syncText = "the longest wait before what failed is tried again, and half of what makes " +
		"/healthz say 503"
	minSyncText = "the least time between two syncs; a change after a quiet time does not wait"
	machineID   = "kube-proxy does not use it either"
	lowered     = "what an administrator raised above it stays"
)
