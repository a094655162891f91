package delivery_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

func TestB6_TelemetryNeverBlocksAndKeepsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		release := make(chan struct{})
		tm := delivery.NewTelemetry(delivery.TelemetryConfig{Capacity: 4, Timeout: time.Hour,
			Send: func(_ context.Context, m delivery.Message) error {
				<-release
				sent = append(sent, m.ID)
				if m.ID == "m98" {
					return errors.New("lost")
				}
				return nil
			}})
		ctx, cancel := context.WithCancel(t.Context())
		var worker sync.WaitGroup
		worker.Go(func() { tm.Run(ctx) })
		start := time.Now()
		for i := range 100 {
			tm.Offer(delivery.Message{ID: "m" + strconv.Itoa(i)})
			if i == 0 {
				synctest.Wait() // the worker hangs with the first one
			}
		}
		if time.Since(start) != 0 {
			t.Errorf("offering took %v", time.Since(start))
		}
		close(release)
		synctest.Wait()
		if want := []string{"m0", "m96", "m97", "m98", "m99"}; len(sent) != len(want) || sent[1] != "m96" || sent[4] != "m99" {
			t.Errorf("sent %v, want %v", sent, want)
		}
		if c := tm.Counts(); c != (delivery.TelemetryCounts{Sent: 4, Failed: 1, Dropped: 95}) {
			t.Errorf("counts %+v", c)
		}
		cancel()
		worker.Wait()
	})
}

func TestB6_HangingTelemetryDelaysNoEventAndEndsWithItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := sender(&script{answers: []int{-1}})
		tm := delivery.NewTelemetry(delivery.TelemetryConfig{Send: silent.Attempt, Timeout: 3 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		var worker sync.WaitGroup
		worker.Go(func() { tm.Run(ctx) })
		tm.Offer(event)
		tm.Offer(event)
		synctest.Wait()
		start := time.Now()
		if err := sender(&script{answers: []int{204}}).Send(t.Context(), event); err != nil || time.Since(start) != 0 {
			t.Errorf("the event took %v: %v", time.Since(start), err)
		}
		time.Sleep(3*time.Second + 1) // virtual
		synctest.Wait()
		if c := tm.Counts(); c.Failed != 1 {
			t.Errorf("counts %+v", c)
		}
		cancel()
		worker.Wait()
		if c := tm.Counts(); c.Sent != 0 || c.Failed+c.Dropped != 2 {
			t.Errorf("counts at the end %+v", c)
		}
	})
}
