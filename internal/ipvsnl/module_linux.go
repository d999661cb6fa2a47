package ipvsnl

import "golang.org/x/sys/unix"

// loadModule makes the kernel load the module ip_vs and reports whether that was tried. It is for Linux before 5.16, whose
// ip_vs does not say that it is the generic netlink family ("ipvs: autoload ipvs on genl access"). With CAP_SYS_MODULE,
// asking for a network device that does not exist makes the kernel load a module of that name (dev_load in
// net/core/dev_ioctl.c). A newer kernel has tried in vain already, and does so once more.
func loadModule() bool {
	ifreq, err := unix.NewIfreq("ip_vs")
	if err != nil {
		return false
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifreq) == unix.ENODEV
}
