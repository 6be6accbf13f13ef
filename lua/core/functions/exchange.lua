-- exchange: report finished jobs, promote due jobs and fetch ready jobs. The main call of a worker.
-- KEYS 1 meta   ARGV 1 packed {consumer, want, finished, quiet, no_metrics, held, leasing, channel, idle, limiter, tokens,
-- charges, by_name, preferred}, cut after the last one that is not false
-- -> packed {now, statuses, jobs, next_due, flags, dropped, budgets}   want: jobs to fetch, at most WANT_MAX per call
--   statuses: one per finished row, see core/finish.lua      jobs: see core/fetch.lua
--   next_due: ms until more jobs may be ready, or -1      limiter: {max, duration ms} or false
--   flags: 1 = paused, 2 = no ready job is left, 4 = a limit of the queue allowed fewer jobs than requested, 8 = the
--   outbox has entries, of this call or of another; 16 = the worker should send figures per job name; 64 = the
--   number of jobs leased per time is limited; 65536 and above: the revision of the schedulers (schedulers/schedulers.lua),
--   if there is one
--   tokens: absent, or {max, duration ms, tokens reported per finished job}, see features/limits/limits.lua
--   idle: the token of a call queued behind a blocking read (docs/reference/functions.md, "Waking"); if invalidated, it
--   fetches nothing
--   dropped: {stream entry id or '', job id, reason} of the entries dropped during the fetch
--   charges: absent, or what finished jobs used of their flow's budget, see features/budgets/budget.lua
--   held: false, or the worker's current jobs: {jobs, suspects, smallest limit of these}, see
--   stalled_jobs/suspects.lua
--   leasing: false or absent, or {owner, lock ms, expiry 0 to 2, limits}: the fetched and reported jobs are leases,
--   see features/leases/leases.lua
--   channel: false or absent, or {name, whether the server is a cluster}: registered to be woken up if fewer jobs than
--   requested are ready, see features/many_queues/wake_channels.lua
--   by_name: false or absent, or {number, rows}: figures per job name of the worker, see
--   features/metrics_by_name/functions/_metrics_by_name.lua
--   preferred: false or absent, or {turns, fair keys}: the keys may be served so many turns early, see
--   features/fair_keys/fetch_fair.lua
--   budgets: absent, or {decisions by job id, or false; rows that passed a limit}, see features/budgets/budget.lua
-- Bound: 1,000 finished rows, WANT_MAX jobs, PROMOTE_MAX promoted jobs.

local REQUEST = G.requests.exchange
local CONSUMER, WANT, FINISHED, QUIET = REQUEST.consumer, REQUEST.want, REQUEST.finished, REQUEST.quiet
local NO_METRICS, LEASING, CHANNEL, IDLE = REQUEST.no_metrics, REQUEST.leasing, REQUEST.channel, REQUEST.idle
local TOKENS, FETCHED_ID = G.rows.tokens, G.rows.fetched_job.id
local PROMOTE_MAX = 200
local WANT_MAX = 1000 -- limit of the arguments of one command
local OUTBOX_PENDING, BY_NAME, HAS_RATE = 8, 16, 64

-- Return whether every start of a job is reported by an event: until the time in the field `tellsStarts` of P:meta.
local function tells_starts(q, fetching)
  local till = q.tells_starts
  return till and not fetching.quiet and G.count_of(till) > fetching.now
end

-- Write an event for each fetched job; the field distinguishes it from that of a parent which becomes ready.
local function tell_starts(q, jobs)
  for i = 1, #jobs do
    local id = jobs[i][FETCHED_ID]
    if i == 1 then
      G.emit(q.events, 'active', id, 'started', '1')
    else
      G.pcall('XADD', q.events, '*', 'event', 'active', 'jobId', id, 'started', '1')
    end
  end
end

-- A gateway prefetches no jobs from a queue with a rate: those that return would be counted twice.
local function rate_flag(fetching, limits) return fetching.lease and limits.rate and HAS_RATE or 0 end

-- Return the flags.
local function fetch_within_limits(q, fetching, want, limiter, tokens)
  local limits = G.limits(q, fetching, want, limiter, tokens, fetching.settings)
  local flags = G.fetch_within(q, fetching, limits, G.fetch)
  if fetching.tells_starts then tell_starts(q, fetching.jobs) end
  -- A worker that cannot fetch any job now waits until something new is pushed: on its channel, or in the stream.
  if flags ~= 0 and fetching.channel then
    G.register_channel(q, fetching.now, fetching.channel)
  elseif flags ~= 0 and #fetching.jobs == 0 then
    G.skip_old_wakes(q)
  end
  return flags + rate_flag(fetching, limits)
end

-- Return whether all jobs are in the stream or have fair keys, and whether the outbox has entries. In most queues they
-- are: one command instead of one per place.
local function read_places(q, ranked)
  local places = redis.call('EXISTS', q.scheduled, q.lifo, q.priority, q.ratelimited, q.suspects,
    q.suspect_host, q.outbox)
  if ranked then places = places + redis.call('EXISTS', q.ranked_above, q.ranked_below, q.delayed_own) end
  if places == 0 then return true, false end
  local outbox = redis.call('EXISTS', q.outbox)
  return places == outbox, outbox == 1 and G.size('XLEN', q.outbox) > 0
end

-- Find out which sources and which records the fetch must read. Return whether the outbox has entries.
local function find_sources(q, fetching)
  fetching.ranked = G.ranks.are_used(fetching.settings)
  -- What each activated job needs besides a fetch goes through G.activate.
  fetching.reads_plain = not (fetching.ranked or q.limits_names)
  local outbox_has_entries
  fetching.no_places, outbox_has_entries = read_places(q, fetching.ranked)
  G.fair.prepare(q, fetching, PROMOTE_MAX)
  if fetching.fair_waits or fetching.lease or not fetching.no_places then G.note_clock(q, fetching.now) end
  return outbox_has_entries
end

-- Make due jobs ready. Return ms until the next one is due, or -1.
local function promote(q, fetching, quiet)
  local next_due = G.earlier(G.promote_due(q, fetching.now, PROMOTE_MAX, quiet), G.groups.end_limits(q, fetching))
  if not fetching.ranked then return next_due end
  return G.earlier(next_due, G.ranks.promote_due(q, fetching.now, PROMOTE_MAX, quiet))
end

-- Return ms until the next exchange is needed, or -1. sweeps: see _clock.lua.
local function next_wait(q, next_due, fetching) return rawget(q, 'sweeps') and 0 or G.earlier(next_due, fetching.next_due) end

local function scheduled_is_ready(q, fetching)
  return fetching.ranked and G.ranks.is_ready(q) or G.priority_is_due(q, fetching.now)
end

-- Figures that cannot be stored do not fail the call.
local function record_by_name(q, fetching, request)
  local text = G.by_name_setting(fetching.settings)
  local settings = text and not request[NO_METRICS] and G.metrics_by_name.settings(text)
  if not settings then return 0 end
  local rows = request[REQUEST.by_name]
  if rows then G.attempt(G.metrics_by_name.record, q, settings, fetching.consumer, rows, fetching.now) end
  return BY_NAME
end

local function run(q, fetching, request, want)
  local finished, quiet = request[FINISHED], request[QUIET]
  if fetching.lease then G.leases.end_timed_out(q, fetching, finished) end
  local statuses, tokens = G.finish(q, fetching, finished, quiet, request[NO_METRICS]), request[REQUEST.tokens]
  if tokens then G.count_tokens(q, tokens[TOKENS.duration], fetching.now, tokens[TOKENS.counts], statuses) end
  if fetching.lease then G.leases.reported(q, fetching, finished, statuses, want) end
  local charges = request[REQUEST.charges]
  local passed = charges and G.budgets.charge_finished(q, charges, finished, statuses)
  local next_due, flags = -1, 0
  local outbox_has_entries = find_sources(q, fetching)
  if not fetching.no_places then next_due = promote(q, fetching, quiet) end
  if want > 0 then
    flags = fetch_within_limits(q, fetching, want, request[REQUEST.limiter], tokens)
  elseif #finished > 0 and G.has_concurrency(fetching.settings) then
    G.wake(q, 1) -- a slot is free, and this worker does not use it
  elseif not fetching.no_places and scheduled_is_ready(q, fetching) then
    G.wake(q, 1) -- the job stays in the set: a worker with a free slot fetches it from there
  end
  G.fair.finish(q, fetching)
  G.promote_groups(q, fetching)
  if fetching.parked then next_due = G.earlier(next_due, G.groups.next_limited(q, fetching.now)) end
  if outbox_has_entries or G.outbox_pending(q) then flags = flags + OUTBOX_PENDING end
  flags = flags + (rawget(q, 'schedulers_flag') or 0) + record_by_name(q, fetching, request)
  return G.replies.exchange(fetching.now, statuses, fetching.jobs, next_wait(q, next_due, fetching), flags, fetching.dropped,
    G.budgets.reply_part(fetching, passed))
end

G.export('exchange', { 'allow-oom' }, G.for_workers(function(q, args)
  local now = G.now(q)
  local settings, rejected = G.settings(q, now)
  if rejected then return rejected end
  local request = G.calls.exchange(args)
  local fetching, want = G.fetching(q, now, request[CONSUMER], request[QUIET]), math.min(request[WANT], WANT_MAX)
  local idle, leasing = request[IDLE], request[LEASING]
  if idle and redis.call('ZSCORE', q.invalidated, idle) then want = 0 end
  fetching.held, fetching.settings, fetching.channel = request[REQUEST.held] or nil, settings, request[CHANNEL] or nil
  fetching.preferred, fetching.no_metrics = request[REQUEST.preferred] or nil, request[NO_METRICS]
  fetching.timeline, fetching.tells_starts = q.timeline, tells_starts(q, fetching)
  if leasing then fetching.lease = G.leases.settings(leasing) end
  q.defer, q.fetching = true, fetching
  local ok, reply = pcall(run, q, fetching, request, want)
  -- Changes of groups are written once per group, also if the call fails half-way.
  G.groups.flush(q)
  if fetching.lease then G.leases.store(q, fetching) end
  if not ok then error(reply, 0) end
  return reply
end), true)
