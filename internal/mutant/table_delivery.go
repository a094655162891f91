package mutant

// deliveries are the traps of inbox and outbox.
func deliveries() []Mutant {
	return []Mutant{
		{
			Name: "T16", Trap: 16, File: "orchestrator/delivery.go",
			Mistake: "the delivery is recorded in a transaction of its own, so that an effect which fails is never tried again",
			Edits: []Edit{
				{"\treturn s.update(ctx, \"delivery\", func(tx store.Tx, now time.Time) error {\n\t\tfresh, err := inbox.Record(", "\tfresh := false\n" +
					"\terr := s.update(ctx, \"delivery\", func(tx store.Tx, now time.Time) (err error) {\n\t\tfresh, err = inbox.Record("},
				{"\t\tif err != nil || !fresh {\n\t\t\treturn err\n\t\t}\n\t\tdid, err := effect(tx, now)\n", "\t\treturn err\n\t})\n\tif err != nil || !fresh {\n\t\treturn err\n\t}\n" +
					"\treturn s.update(ctx, \"effect\", func(tx store.Tx, now time.Time) error {\n\t\tdid, err := effect(tx, now)\n"},
			},
			Noticed: noticed(tests("orchestrator", "TestB3_T16_AFailedEffectLeavesNoDeliveryBehind")),
		},
		{
			Name: "T17", Trap: 17, File: "delivery/receiver.go",
			Mistake: "what concerns something not known yet is answered 404, which is never sent again",
			Edits: edit("\tcase errors.Is(err, ErrNotYet):\n\t\treturn http.StatusServiceUnavailable\n",
				"\tcase errors.Is(err, ErrNotYet):\n\t\treturn http.StatusNotFound\n"),
			Noticed: noticed(tests("delivery", "TestT17_OnlyWhatCanNeverSucceedIsA4xx"), tests("orchestrator", "TestB7_T17_ADeliveryBeforeItsRowIsVisibleComesAgain")),
		},
		{
			Name: "T18", Trap: 18, File: "delivery/outbox/claim.go",
			Mistake: "everything up to the last id that was sent has been sent: rows that commit later under a lower id are skipped",
			Edits: edit("\twhere = `o.state = 'PENDING' AND o.due_at <= $1 AND (",
				"\twhere = `o.state = 'PENDING' AND o.due_at <= $1 AND o.id > COALESCE((SELECT MAX(p.id) FROM outbox p WHERE p.state = 'SENT'), '') AND ("),
			Noticed: noticed(tests("delivery/outbox", "TestT18_RowsThatCommitOutOfOrderAreFound")),
		},
		{
			Name: "T18 watch", Trap: 18, File: "orchestrator/watch.go",
			Mistake: "changes are numbered without waiting for who numbers already, so a lower number becomes visible after a higher one",
			Edits:   edit("n, err := readNumbers(ctx, tx, project, tx.ForUpdate())", "n, err := readNumbers(ctx, tx, project, \"\")"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT18_ANumberThatIsBeingGivenIsNotGivenAgain")),
		},
		{
			Name: "T19", Trap: 19, File: "delivery/outbox/claim.go",
			Mistake: "a row waits for those before it of the same key until they were sent, also for one that never will be",
			Edits:   edit("AND e.state = 'PENDING' AND (e.position < o.position", "AND e.state <> 'SENT' AND (e.position < o.position"),
			Noticed: noticed(tests("delivery/outbox", "TestT19_ADeadLetterHoldsUpNothingBehindIt")),
		},
		{
			Name: "T20", Trap: 20, File: "orchestrator/purge.go",
			Mistake: "the fleet's deliveries are known for a day, while its outbox goes on sending for five",
			Edits:   edit("store.Micros(now.Add(-holdfast.TombstoneKept)), purgeRows)", "store.Micros(now.Add(-24*time.Hour)), purgeRows)"),
			Noticed: noticed(tests("orchestrator", "TestT20_DeliveriesAreKnownForLongerThanTheyAreSent")),
		},
		{
			Name: "T21", Trap: 21, File: "delivery/outbox/dispatcher.go",
			Mistake: "the loop waits to be woken, so what another process enqueued, or what comes due again, is never sent",
			Edits: []Edit{
				{"\t\tpause, err := d.fill(ctx, func(row Row) {\n", "\t\t_, err := d.fill(ctx, func(row Row) {\n"},
				{"\t\tcase <-d.config.After(pause):\n", ""},
			},
			Noticed: noticed(tests("delivery/outbox", "TestT21_PollingAloneFindsTheRow")),
		},
		{
			Name: "T21 watch", Trap: 21, File: "orchestrator/watch.go",
			Mistake: "watchers are woken by changes of this process alone, and never look for those of another",
			Edits:   edit("\t\tcase <-poll.C:\n\t\t\treturn nil\n", ""),
			Noticed: noticed(tests("orchestrator", "TestT21_AWatchSeesChangesOfAnotherProcessWithoutABell")),
		},
	}
}

// retries are the traps of trying again.
func retries() []Mutant {
	return []Mutant{
		{
			Name: "T22", Trap: 22, File: "fleet/ensure.go",
			Mistake: "the fleet tries a host three times, each of which its own caller repeats",
			Edits: edit("\tseen, err := s.order(ctx, r.hostURL, r.level(wait))\n\treturn seen, s.checkAnswer(ctx, r, seen, err)\n",
				"\tfor try := 1; ; try++ {\n\t\tseen, err := s.order(ctx, r.hostURL, r.level(wait))\n"+
					"\t\tif err = s.checkAnswer(ctx, r, seen, err); err == nil || try == 3 {\n\t\t\treturn seen, err\n\t\t}\n\t}\n"),
			Noticed: noticed(tests("fleet", "TestT22_AnUnreachableHostIsToldOnceAndNothingIsWritten")),
		},
		{
			Name: "T23", Trap: 23, File: "delivery/sender.go",
			Mistake: "no spread was configured, so the pauses are 1 s and 5 s sharp for every guest of a fleet",
			Edits:   edit("\tif spread == 0 {\n\t\tspread = DefaultSpread\n\t}\n", ""),
			Noticed: noticed(tests("delivery", "TestT23_JitterSpreadsThePauses")),
		},
		{
			Name: "T24", Trap: 24, File: "hostagent/machine.go",
			Mistake: "a level that arrives while another is carried out begins an attempt of its own instead of joining",
			Edits:   edit("\tif at := m.attempt; at != nil {\n\t\tat.asked = at.asked || asked\n", "\tif at := m.attempt; at != nil && !asked {\n\t\tat.asked = at.asked || asked\n"),
			Noticed: noticed(tests("hostagent", "TestT24_ALevelThatArrivesMeanwhileJoins")),
		},
		{
			Name: "T25", Trap: 25, File: "delivery/outbox/decide.go",
			Mistake: "the pause is shifted first and capped then, so after enough failures it is negative or nothing",
			Edits: edit("\tshift, longest := max(failures-1, 0), p.Cap\n\tif shift < 62 && p.Base <= p.Cap>>shift {\n\t\tlongest = p.Base << shift\n\t}\n",
				"\tlongest := min(p.Base<<max(failures-1, 0), p.Cap)\n"),
			Noticed: noticed(tests("delivery/outbox", "TestT25_BackoffNeverOverflows")),
		},
	}
}
