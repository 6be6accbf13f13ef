-- Recover one stalled job: make it ready again, or fail it if it has stalled too often.

G.return_stalled = function(q, run, id, h)
  local g = G.return_job(q, id, run.now, h)
  if g then G.groups.promote_parked(q, g, run.now) end
end

-- End an attempt: the job fails for the reason, or is made ready again if there is none.
G.end_stalled = function(q, run, id, entry, h, reason, consumer)
  if reason then
    G.bump(q.J .. id, 'fence')
    G.end_job(q, id, run.now, reason, 'failed', h.processedOn, { worker = consumer, started = h.processedOn })
    run.failed[#run.failed + 1] = id
  else
    G.failures.stalled(q, id, h, run.now, consumer)
    G.return_stalled(q, run, id, h)
    run.recovered[#run.recovered + 1] = id
  end
  if entry == '' then G.untrack_list_job(q, id) else G.ack_entries(q, { entry }) end
end

-- lost: how many jobs were lost together with this one, it included. consumer: the worker that had the job, '' = a lease.
-- run: {now, max_stalled, quiet, recovered, failed}.
G.recover_job = function(q, run, id, entry, h, lost, consumer)
  local discarded = redis.call('HEXISTS', q.J .. id, 'discarded') == 1
  local charged = discarded or not G.suspects.suspect(q, id, h, lost)
  local most = discarded and 0 or G.stalled_policy.max_stalled(q, run, consumer)
  local fails = charged and G.bump(q.J .. id, 'stalledCount') > most
  if not (fails or run.quiet) then G.emit(q.events, 'stalled', id) end
  G.end_stalled(q, run, id, entry, h, fails and 'job stalled more than maxStalledCount', consumer)
  redis.call('HDEL', q.stall_watch, id)
end
