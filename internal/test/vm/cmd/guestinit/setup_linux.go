package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

type mount struct {
	source, target, fstype, data string
}

// mounts are the file systems that tests may expect, in the order of mounting.
var mounts = []mount{
	{"proc", "/proc", "proc", ""},
	{"sysfs", "/sys", "sysfs", ""},
	{"devtmpfs", "/dev", "devtmpfs", "mode=0755"},
	{"devpts", "/dev/pts", "devpts", "mode=0620,ptmxmode=0666"},
	{"tmpfs", "/dev/shm", "tmpfs", "mode=1777"},
	{"tmpfs", "/run", "tmpfs", "mode=0755"},
	{"tmpfs", "/tmp", "tmpfs", "mode=1777"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", ""},
}

func mountAll() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("make the mount point: %w", err)
		}

		// EBUSY: the kernel mounted devtmpfs before us (CONFIG_DEVTMPFS_MOUNT).
		if err := unix.Mount(m.source, m.target, m.fstype, 0, m.data); err != nil &&
			!errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}

	return nil
}

// prepare brings the machine into the state of a freshly booted host.
func prepare() error {
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	for _, link := range [][2]string{
		{"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"},
		{"fd/2", "/dev/stderr"},
	} {
		if err := os.Symlink(link[0], link[1]); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make link: %w", err)
		}
	}

	// The kernel calls this program to load a module on its first use.
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte("/sbin/modprobe"),
		0o644); err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}

	if err := unix.Sethostname([]byte("vmtest")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}

	// Tests of draining hold thousands of connections; the kernel starts process 1
	// with 4096 descriptors at most.
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return loopbackUp()
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// openPort opens a serial port for bytes as they are: no echo, no translation.
func openPort(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the port to the host: %w", err)
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("port %s: get settings: %w", path, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("port %s: change settings: %w", path, err)
	}
	return f, nil
}

// drain waits until the port has sent everything: tcdrain(3) is the ioctl TCSBRK
// with an argument that is not zero.
func drain(port *os.File) {
	_ = unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1)
}
