package operation

import (
	"fmt"
	"time"
)

// The parts of a joint statement (store.Joint) that concern operations, for callers that do the rest of a transaction's
// usual case in it: what RecordTaken and Finish do, without their explanations. They are PostgreSQL's.

// JointColumns are what a caller gives for [JointRecord], as [JointValues] returns it.
const JointColumns = `operation text, resource_kind text, resource_id text, kind text, intent_generation bigint, holder text,
	claim_for bigint, deadline_after bigint`

// JointRecord records and claims the operations of the rows of a part that is called made. One whose resource has a
// pending operation fails the statement.
const JointRecord = `INSERT INTO operation (id, resource_kind, resource_id, kind, generation, state, claim, holder,
	claimed_at, claim_expires, attempts, entered_at, deadline, due_at, updated_at)
	SELECT g.operation, g.resource_kind, g.resource_id, g.kind, g.intent_generation, 'PENDING', 1, g.holder,
		now, now + g.claim_for, 1, now, now + g.deadline_after, now + g.claim_for, now FROM made g, clock`

// JointFinish ends, DONE, the operations of the rows of a part that is called made, as far as their claims are current,
// and returns the ids: the columns operation, claim and holder say which claims. The caller fails the statement where
// some are not. (To a plan that is made while the tables are small, a partial index looks as good as a key: what is
// compared is not quite the column, so that none fits.)
const JointFinish = `UPDATE operation o SET holder = '', claim_expires = 0, waits_for = '', updated_at = now,
	finished_at = now, state = 'DONE', last_error = '', superseded_by = '' FROM made g, clock
	WHERE o.id = g.operation AND o.claim = g.claim AND o.holder = g.holder AND o.holder <> '' AND o.state || '' = 'PENDING'
	RETURNING o.id`

// JointValues are an intent's values for [JointColumns]. The intent's deadline counts from the given instant, whatever
// the statement's clock says; an input fits no joint statement.
func JointValues(now time.Time, in Intent, a Attempt) ([]any, error) {
	ttl, err := a.ttl()
	if err == nil {
		err = in.validate()
	}
	if err == nil && len(in.Input) > 0 {
		err = fmt.Errorf("an input of %d bytes in a joint statement", len(in.Input))
	}
	if err != nil {
		return nil, fmt.Errorf("record operation %s: %w", in.ID, err)
	}
	return []any{in.ID, in.Resource.Kind, in.Resource.ID, in.Kind, in.Generation, a.Holder,
		ttl.Microseconds(), in.Deadline.Sub(now).Microseconds()}, nil
}

// JointTaken is what JointRecord recorded of an intent at the instant of its clock.
func JointTaken(now time.Time, in Intent, a Attempt) (Operation, Claim, error) {
	return taken(now, in, a)
}
