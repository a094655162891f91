package server

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// observe serves what a supervisor asks: is the process alive, does it take
// calls, and its metrics.
func (s *Server) observe(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.orchestrator != nil {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_attempts_running", Help: "Attempts on operations that run in this process.",
		}, func() float64 { return float64(s.orchestrator.Attempts()) }))
	}
	for party, db := range s.databases {
		labels := prometheus.Labels{"party": party}
		registry.MustRegister(
			prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "holdfast_store_updates_total", ConstLabels: labels,
				Help: "Transactions that wrote, or tried to."}, func() float64 { updates, _ := db.counts(); return float64(updates) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "holdfast_store_commits_total", ConstLabels: labels,
				Help: "Commits; one carries the updates that came together."}, func() float64 { _, commits := db.counts(); return float64(commits) }))
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	// The asker may have hung up; it will ask again.
	_, _ = fmt.Fprintln(w, text)
}
