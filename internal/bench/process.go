package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

var updatesLine = regexp.MustCompile(`(?m)^holdfast_store_updates_total\{party="(\w+)"\} (\S+)$`)

// updates is how many transactions each party of a server has made, as its metrics say.
func updates(ctx context.Context, url string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, m := range updatesLine.FindAllStringSubmatch(string(raw), -1) {
		if found[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0 // it cannot fail for oneself
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
