package injection

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// Config says against what the matrix is run.
type Config struct {
	Runtime       string // simulated or runc
	RuntimeBinary string // of runc
	GuestBinary   string // of runc; "": beside this program
	TempDir       string // where throwaway systems live; "": the system's
	AtOnce        int    // experiments; 0: 6
	Progress      func(Result)

	sabotage func(http.RoundTripper) http.RoundTripper // makes the system wrong, for tests of the experiments
}

// Result is what came of one experiment.
type Result struct {
	Hop     string        `json:"hop,omitempty"`
	Message string        `json:"message"`
	Cell    Cell          `json:"cell"`
	Did     string        `json:"did"`
	Saw     string        `json:"saw,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Failure string        `json:"failure,omitempty"` // "" where the cell held
}

// Report is a whole injection.
type Report struct {
	Runtime string        `json:"runtime"`
	Results []Result      `json:"results"`
	Missing []string      `json:"missing,omitempty"` // cells of the running registries that no experiment tries
	Took    time.Duration `json:"took_ns"`
}

// Failed counts what did not hold, cells without an experiment included.
func (r Report) Failed() int {
	n := len(r.Missing)
	for _, result := range r.Results {
		if result.Failure != "" {
			n++
		}
	}
	return n
}

// Run makes every experiment. Its error means that it could not be done at all.
func Run(ctx context.Context, config Config) (Report, error) {
	return run(ctx, config, experiments())
}

func run(ctx context.Context, config Config, all []experiment) (Report, error) {
	began := time.Now()
	matrix, err := matrixOf(ctx, config)
	if err != nil {
		return Report{}, fmt.Errorf("start a throwaway system: %w", err)
	}
	if config.AtOnce <= 0 {
		config.AtOnce = 6
	}
	report := Report{Runtime: config.Runtime, Results: make([]Result, len(all)), Missing: missing(matrix, all)}
	room := make(chan struct{}, config.AtOnce)
	var group sync.WaitGroup
	var told sync.Mutex
	for i, e := range all {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			report.Results[i] = try(ctx, config, e)
			if config.Progress != nil {
				told.Lock()
				defer told.Unlock()
				config.Progress(report.Results[i])
			}
		})
	}
	group.Wait()
	report.Took = time.Since(began)
	return report, ctx.Err()
}

// limit bounds one experiment, its system's start and end included.
const limit = 75 * time.Second

func try(ctx context.Context, config Config, e experiment) Result {
	began := time.Now()
	out := Result{Hop: e.hop, Message: e.message, Cell: e.cell, Did: e.does}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l, err := open(ctx, config, e.trustHosts)
	if err == nil {
		out.Saw, err = e.run(l)
		err = errors.Join(err, l.close())
	}
	if err != nil {
		out.Failure = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	out.Took = time.Since(began)
	return out
}

// matrixOf asks the parties of a throwaway system for their registries.
func matrixOf(ctx context.Context, config Config) (holdfast.AuditMatrix, error) {
	l, err := open(ctx, config, false)
	if err != nil {
		return holdfast.AuditMatrix{}, err
	}
	matrix, err := l.client.GetMatrix(l)
	return matrix, errors.Join(err, l.close())
}

// missing lists the cells that no experiment tries.
func missing(m holdfast.AuditMatrix, all []experiment) (list []string) {
	add := func(what string, has func(experiment) bool) {
		if !slices.ContainsFunc(all, has) && !slices.Contains(list, what) {
			list = append(list, what)
		}
	}
	for _, p := range m.Parties {
		for _, h := range p.Hops {
			for _, cell := range []Cell{Twice, Late, Never} {
				add(fmt.Sprintf("%s %s: %s", h.Name, h.Message, cell), func(e experiment) bool { return e.hop == h.Name && e.cell == cell })
			}
		}
		for _, d := range p.Deliveries {
			for _, cell := range []Cell{Twice, Late, Never} {
				add(fmt.Sprintf("%s: %s", d.Kind, cell), func(e experiment) bool {
					return (e.message == d.Kind || "host."+e.message == d.Kind) && e.cell == cell
				})
			}
		}
		for _, r := range p.Resources {
			if r.Reporter == "" {
				continue
			}
			who := p.Party + " " + r.Kind
			add(who+": "+string(FirstContact), func(e experiment) bool { return e.cell == FirstContact && e.message == who })
		}
	}
	return list
}
