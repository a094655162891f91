package kill

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// claimTTL is how long claims last here; stopFor is longer.
const (
	claimTTL = 2 * time.Second
	stopFor  = claimTTL + time.Second
)

// target is what a strike hits.
type target int

const (
	aServer   target = iota // one of the deployment's own processes
	aGuest                  // PID 1 of an instance
	aDatabase               // PostgreSQL's first process
	aPower                  // all of a server's machine but what its disk has
	aFullDisk               // the room on a server's disk, for a while
)

// menu is what there is to hit, and how often in twenty; the rest are servers.
type menu map[target]int

// draw picks a target by a number below twenty.
func (m menu) draw(n int) target {
	for _, at := range []target{aGuest, aDatabase, aPower, aFullDisk} {
		if n -= m[at]; n < 0 {
			return at
		}
	}
	return aServer
}

// strike is one blow. Which, when and how is a matter of the seed alone.
type strike struct {
	after  time.Duration // since the one before
	at     target
	victim int  // the how many-th of those there are then
	stop   bool // SIGSTOP for stopFor instead of SIGKILL
	// down is how long a killed one stays away. again: its successor is killed so
	// soon after its start, in the middle of its recovery; 0: it is left alone.
	down, again time.Duration
}

// plan draws n strikes.
func plan(seed uint64, n int, from menu) []strike {
	random := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // to be repeated, not to be guessed
	below := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
	strikes := make([]strike, n)
	for i := range strikes {
		s := strike{after: below(700 * time.Millisecond), victim: random.IntN(1 << 20), stop: random.IntN(5) == 0}
		if s.at = from.draw(random.IntN(20)); random.IntN(3) == 0 {
			s.down = below(600 * time.Millisecond)
		}
		if random.IntN(4) == 0 {
			s.again = 1 + below(300*time.Millisecond)
		}
		strikes[i] = s
	}
	return strikes
}

// blow is the worst that an instance met.
type blow int

const (
	none      blow = iota
	early          // its PID 1 was killed before it was the guest agent: it may be set up anew
	killed         // its PID 1 was, and with cgroups of version 1 what is frozen dies when it is thawed
	unplugged      // its host's power was cut
)

// striker strikes at a deployment, and remembers whom it hit.
type striker struct {
	d          *deployment
	goingOn    sync.WaitGroup // what is stopped, until it goes on
	hostDeaths func()         // called before a host agent is killed
	struck     func(holdfast.InstanceID, blow)

	mu     sync.Mutex
	frozen map[int]bool   // process ids
	hits   map[string]int // by what was hit and how
	errs   []error
}

// hit counts a blow.
func (s *striker) hit(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hits[what]++
}

// total is how many blows were struck.
func (s *striker) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hits := range s.hits {
		n += hits
	}
	return n
}

// do strikes once. A blow that finds nobody is no blow.
func (s *striker) do(b strike) error {
	switch b.at {
	case aGuest:
		return s.atGuest(b)
	case aDatabase:
		s.hit("PostgreSQL killed")
		if err := s.d.postgres.KillPostmaster(); err != nil {
			return err
		}
		return s.d.postgres.Start()
	case aPower:
		return s.atPower(b)
	case aFullDisk:
		return s.atRoom(b)
	}
	return s.atServer(b)
}

func (s *striker) atServer(b strike) error {
	server := s.d.servers[b.victim%len(s.d.servers)]
	pid := server.PID()
	s.mu.Lock()
	busy := s.frozen[pid]
	s.mu.Unlock()
	if busy {
		return nil
	}
	what := strings.TrimRight(server.Name, "0123456789")
	if b.stop {
		s.hit(what + " stopped")
		s.freeze(pid)
		if len(s.d.servers) == 1 {
			s.goingOn.Wait() // nothing else is there to be struck
		}
		return nil
	}
	if strings.HasPrefix(what, "host") || what == "server" {
		s.hostDeaths()
	}
	s.hit(what + " killed")
	if err := server.Kill(); err != nil {
		return err
	}
	wait(b.down)
	if b.again > 0 {
		if err := server.Launch(); err != nil {
			return err
		}
		wait(b.again)
		s.hit(what + " killed")
		if err := server.Kill(); err != nil {
			return err
		}
	}
	return server.Start()
}

// freeze stops a process and lets it go on after stopFor.
func (s *striker) freeze(pid int) {
	s.mu.Lock()
	s.frozen[pid] = true
	s.mu.Unlock()
	s.note(syscall.Kill(pid, syscall.SIGSTOP))
	s.goingOn.Go(func() {
		wait(stopFor)
		s.note(syscall.Kill(pid, syscall.SIGCONT))
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.frozen, pid)
	})
}

// note keeps an error of a signal, unless its process had ended by itself.
func (s *striker) note(err error) {
	if err == nil || err == syscall.ESRCH { //nolint:errorlint // the system call's own word
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

func (s *striker) atGuest(b strike) error {
	guests, err := s.d.guests()
	if err != nil || len(guests) == 0 {
		return err
	}
	g := guests[b.victim%len(guests)]
	if b.stop {
		s.hit("guest stopped")
		s.freeze(g.pid)
		return nil
	}
	how := killed
	if _, at := readBoot(g.pid); at == "" {
		how = early
	}
	s.struck(g.instance, how) // before it happens: whoever sees it knows why
	s.hit("guest killed")
	s.note(syscall.Kill(g.pid, syscall.SIGKILL))
	return nil
}

// guest is a process of an instance, as the host sees it.
type guest struct {
	pid      int
	instance holdfast.InstanceID
	boot     string // in-….1: of its first incarnation
}

var instanceID = regexp.MustCompile(`in-[0-9a-z]{26}`)

// guests lists the PID 1 of every instance of the deployment, dead ones apart.
func (d *deployment) guests() ([]guest, error) { return guestsOf(d.dirs...) }

func guestsOf(dirs ...string) ([]guest, error) {
	all, err := inside(dirs)
	return slices.DeleteFunc(all, func(g guest) bool {
		status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(g.pid), "status"))
		return err != nil || !isFirst(string(status))
	}), err
}

// inside lists the processes of every instance.
func inside(dirs []string) ([]guest, error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var found []guest
	for _, path := range groups {
		group, err := os.ReadFile(path)
		if err != nil || !owns(dirs, string(group)) {
			continue // another's, or gone meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, fmt.Errorf("list the guests: %w", err)
		}
		found = append(found, guest{pid: pid, instance: holdfast.InstanceID(instanceID.FindString(string(group))), boot: bootOf.FindString(string(group))})
	}
	return found, nil
}

func owns(dirs []string, cgroup string) bool {
	for _, dir := range dirs {
		if strings.Contains(cgroup, "/holdfast-"+testenv.RuntimeName(dir)+"/") {
			return true
		}
	}
	return false
}

// isFirst reports whether a process is PID 1 of the innermost namespace that it
// is in, and alive.
func isFirst(status string) bool {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && fields[0] == "State:" && fields[1] == "Z":
			return false
		case len(fields) > 2 && fields[0] == "NSpid:":
			return fields[len(fields)-1] == "1"
		}
	}
	return false
}

// wait lets real time pass, which is what a blow leaves the others to act in.
func wait(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}
