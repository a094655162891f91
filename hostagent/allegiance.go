package hostagent

import (
	"fmt"
	"strconv"

	"github.com/holdfast-dev/holdfast"
)

// allegiance is whom a host obeys: one cluster for ever, and of its databases
// those that were recovered last (trap T52).
type allegiance struct {
	cluster string // "": nobody's order has come yet
	epoch   int64  // the highest seen
}

// order is whose a level is, and what it is about.
type order struct {
	cluster string
	epoch   int64
	about   string // id of a resource
}

// judgeOrder decides whether an order is obeyed, and whom the host obeys then. It
// is pure.
func judgeOrder(now allegiance, l order) (allegiance, error) {
	switch {
	case l.cluster == "":
		return now, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCluster,
			"the order is of no cluster; this host belongs to %q", now.cluster).On(l.about)
	case now.cluster == "":
		return allegiance{cluster: l.cluster, epoch: l.epoch}, nil
	case l.cluster != now.cluster:
		return now, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCluster,
			"this host belongs to cluster %q and refuses orders of %q: is that the right database?", now.cluster, l.cluster).On(l.about)
	case l.epoch < now.epoch:
		return now, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleEpoch,
			"this host has obeyed epoch %d and refuses orders of %d: they are an old database's, or one was restored and holdfast recover not run", now.epoch, l.epoch).
			On(l.about).With("seen", strconv.FormatInt(now.epoch, 10))
	}
	now.epoch = l.epoch
	return now, nil
}

// join makes a new host the configured cluster's, durably, and refuses a directory
// that is another's: nothing in it is touched.
func (who identity) join(c Config) (identity, error) {
	switch {
	case c.ClusterID == "" || who.Cluster == c.ClusterID:
		return who, nil
	case who.Cluster != "":
		return who, fmt.Errorf("%s is a host of cluster %s with its instances, and the database is cluster %s's: restore the database that belongs to them, or give this server a data directory of its own",
			c.Directory, who.Cluster, c.ClusterID)
	}
	who.Cluster = c.ClusterID
	return who, who.save(c.Directory)
}

func (a *Agent) allegiance() allegiance { return a.obeys.Load().(allegiance) }

// obey holds an order against whom the host obeys. What it learns from the order
// is durable before the order is.
func (a *Agent) obey(l order) error {
	if next, err := judgeOrder(a.allegiance(), l); err != nil || next == a.allegiance() {
		return err
	}
	a.swearing.Lock()
	defer a.swearing.Unlock()
	now := a.allegiance()
	next, err := judgeOrder(now, l)
	if err != nil || next == now {
		return err
	}
	who := a.who
	who.Cluster, who.Epoch = next.cluster, next.epoch
	if err := who.save(a.config.Directory); err != nil {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "the host cannot keep whom it obeys").On(l.about).Because(err)
	}
	a.obeys.Store(next)
	a.log.Info("the host obeys", "cluster", next.cluster, "epoch", next.epoch)
	return nil
}
