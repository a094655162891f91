// Command guest is the conformance suite's probe as PID 1 of a container. It
// takes the flags of holdfast-guest.
package main

import (
	"crypto/rand"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/runtime/runtimetest/probe"
)

func main() {
	descriptor := flag.Int("listen-fd", 3, "listener")
	config := flag.String("config", "", "configuration")
	spool := flag.String("spool", "", "spool")
	flag.Parse()
	if err := run(*descriptor, *config, *spool); err != nil {
		fmt.Println("guest:", err)
		os.Exit(1)
	}
}

func run(descriptor int, config, spool string) error {
	if _, err := os.ReadFile(config); err != nil {
		return err
	}
	if err := os.Remove(config); err != nil {
		return err
	}
	if err := os.WriteFile(spool+"/booted", []byte("yes"), 0o600); err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(uintptr(descriptor), "listener"))
	if err != nil {
		return err
	}
	reaped := make(chan os.Signal, 16)
	signal.Notify(reaped, syscall.SIGCHLD)
	fmt.Println("guest: up")
	return probe.Probe{
		Nonce: rand.Text(),
		HTTP:  &http.Client{Timeout: 2 * time.Second},
		Exit:  func() { os.Exit(3) },
		Print: func(s string) { fmt.Println(s) },
		Try:   try,
	}.Serve(listener)
}

// try does what a hostile guest would, and says what came of it.
func try(request string) string {
	verb, rest, _ := strings.Cut(request, " ")
	report := func(err error) string {
		if err != nil {
			return "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		return "ok"
	}
	switch verb {
	case "sh":
		out, err := exec.Command("/bin/sh", "-c", rest).CombinedOutput()
		if err != nil {
			return "error " + err.Error() + ": " + flat(out)
		}
		return "ok " + flat(out)
	case "mount":
		return report(syscall.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	case "unshare":
		return report(syscall.Unshare(syscall.CLONE_NEWUSER))
	case "clone":
		cmd := exec.Command("/bin/id")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		return report(cmd.Run())
	case "mknod":
		return report(syscall.Mknod("/tmp/null", syscall.S_IFCHR|0o600, 1<<8|3))
	case "packet":
		_, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0)
		return report(err)
	case "replace-console":
		return report(os.Rename("/run/holdfast/spool/booted", "/run/holdfast/spool/console"))
	case "write-console":
		return report(os.WriteFile("/run/holdfast/spool/console", nil, 0o600))
	case "write-guest":
		return report(os.WriteFile("/.holdfast/guest", nil, 0o600))
	}
	return "unknown request"
}

func flat(out []byte) string {
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "|")
}
