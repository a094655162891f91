package runc

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Where the guest finds what is the driver's, inside its root.
const (
	guestBinary  = "/.holdfast/guest"
	guestRun     = "/run/holdfast"
	guestConfig  = guestRun + "/config.json"
	guestSpool   = guestRun + "/spool"
	guestConsole = guestSpool + "/" + consoleName
)

const guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// spec is the OCI configuration of one boot.
type spec struct {
	bundle runtime.Bundle
	files  files
	guest  string // of the host
	netns  string
	cgroup string
	host   hostFeatures
}

// hostFeatures is what differs between kernels.
type hostFeatures struct {
	IPv6    bool // the kernel has it, so it must be switched off in the guest
	Swap    bool // swap is accounted, so it can be limited
	Unified bool // control groups of version 2 alone
	Files   uint64
	// Files is how many descriptors a process may have: root without
	// CAP_SYS_RESOURCE cannot give more than it has.
}

const mostFiles = 65536

func readHostFeatures() (hostFeatures, error) {
	ipv6, err := exists("/proc/sys/net/ipv6")
	if err != nil {
		return hostFeatures{}, err
	}
	unified, err := exists("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return hostFeatures{}, err
	}
	account := "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if unified {
		account = "/proc/swaps"
	}
	swap, err := exists(account)
	if err != nil {
		return hostFeatures{}, err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return hostFeatures{}, fmt.Errorf("limit of open files: %w", err)
	}
	return hostFeatures{IPv6: ipv6, Swap: swap, Unified: unified, Files: min(mostFiles, limit.Max)}, nil
}

func (s spec) write() error {
	data, err := json.Marshal(s.build())
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	return os.WriteFile(filepath.Join(s.files.bundle(), "config.json"), data, 0o600)
}

func (s spec) build() specs.Spec {
	capabilities := []string{
		// Docker's, without those that reach the kernel or the network below
		// sockets: MKNOD, NET_RAW and SYS_CHROOT.
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
		"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
	}
	killedFirst := 300 // before the host's own services when the host runs out of memory
	return specs.Spec{
		Version:  "1.0.2",
		Root:     &specs.Root{Path: s.files.merged()},
		Hostname: string(s.bundle.Ref.Instance),
		Process: &specs.Process{
			Args:            []string{guestBinary, "--listen-fd", "3", "--config", guestConfig, "--spool", guestSpool},
			Env:             []string{"PATH=" + guestPath},
			Cwd:             "/",
			NoNewPrivileges: true,
			OOMScoreAdj:     &killedFirst,
			Capabilities:    &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Hard: s.host.Files, Soft: s.host.Files},
				{Type: "RLIMIT_CORE"},
			},
		},
		Mounts: s.mounts(),
		Linux: &specs.Linux{
			CgroupsPath:       s.cgroup,
			RootfsPropagation: "private", // the host unmounts its view at once; the guest's must not follow
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
				{Type: specs.NetworkNamespace, Path: s.netns},
			},
			Resources:     s.resources(),
			Seccomp:       seccompProfile(),
			Sysctl:        s.sysctl(),
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func (s spec) mounts() []specs.Mount {
	spool := s.bundle.Spool
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: guestBinary, Type: "bind", Source: s.guest, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		{Destination: guestRun, Type: "bind", Source: s.files.run(), Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}},
		{Destination: guestSpool, Type: "bind", Source: spool, Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}},
		// A mount point can be neither written nor replaced in there, so the host
		// reads back only what the guest said on its standard output.
		{Destination: guestConsole, Type: "bind", Source: filepath.Join(spool, consoleName), Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}},
	}
	if s.host.Unified {
		// One mount tells programs their limits; version 1 would need a dozen.
		mounts = append(mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}})
	}
	return mounts
}

func (s spec) resources() *specs.LinuxResources {
	limits := s.bundle.Spec.Resources.WithDefaults()
	period, quota := uint64(100_000), limits.CPUMillis*100 // microseconds
	quota = max(quota, 1000)                               // the kernel's least
	shares := uint64(max(2, limits.CPUMillis*1024/1000))
	memory := &specs.LinuxMemory{Limit: &limits.MemoryBytes}
	if s.host.Swap {
		memory.Swap = &limits.MemoryBytes // memory and swap together: no swap
	}
	return &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}, // the runtime adds /dev/null and its like
		Memory:  memory,
		CPU:     &specs.LinuxCPU{Period: &period, Quota: &quota, Shares: &shares},
		Pids:    &specs.LinuxPids{Limit: &limits.PIDs},
	}
}

func (s spec) sysctl() map[string]string {
	values := map[string]string{"net.ipv4.ping_group_range": "0 2147483647"} // ping without NET_RAW
	if s.host.IPv6 {
		values["net.ipv6.conf.all.disable_ipv6"] = "1"
		values["net.ipv6.conf.default.disable_ipv6"] = "1"
	}
	return values
}

// guestJSON is the file that the guest reads when it boots.
func guestJSON(config holdfast.GuestConfig) ([]byte, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("the guest's configuration: %w", err)
	}
	return data, nil
}
