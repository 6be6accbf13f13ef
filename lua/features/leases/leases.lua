-- Leases: jobs fetched without a worker (docs/learn/leases.md). Nobody renews the lock of a lease, so the server keeps
-- its deadline: in the job's record, and as the score of the job in the sorted set `leases`.
-- Field `lease` of the record: `<fence>|<processedOn>|<deadline>|<limit>|<expiry>|<stream entry>|<owner>`. It is valid
-- only for the attempt with this fence and processedOn. limit: the end of the job's `timeout`, 0 = none; expiry: what the
-- end of the lock is, 0 = the job stalled, 1 = a failed attempt, 2 = the job stalled, and an attempt is counted (leases of
-- gateways). `lastActive` is the deadline too: a Node peer compares it with its clock, so it recovers the job no earlier
-- than one lock duration after the deadline.

G.leases = {}
local L = G.leases
local LEASING, REPORT = G.rows.leasing, G.rows.report
local ID = REPORT.id
local KINDS = G.report_kinds

L.FEATURE = 'leases:0.2.0'
-- Consumer of all leases of a queue: serverless callers must not leave a consumer each.
L.CONSUMER = 'leases'

local PATTERN = '^(%d+)|(%d+)|(%d+)|(%d+)|(%d)|([%d%-]*)|(.*)$'
local EXPIRED_PER_CALL, EXPIRED_MAX = 20, 500
L.MAX_STALLED = 1 -- as the default of workers
local SHORTEST_LOCK_MS = 1000
local FAILS, STALLS = '1', '2'
L.MAX_STALLS = 3 -- as the default of bunqueue: the third stall fails the job
local TIMEOUT, EXPIRY = 'JobTimeoutError', 'LeaseExpiredError'
local NO_END = {}

-- ------------------------------------------------------------------ one lease

-- h: state, fence, processedOn, lease of a record. Return {fence, processed_on, deadline, limit, expiry, entry, owner}, or
-- nil if the job is not leased now.
L.current = function(h)
  if not h.lease or h.state ~= 'active' then return nil end
  local fence, processed_on, deadline, limit, expiry, entry, owner = string.match(h.lease, PATTERN)
  if not fence or fence ~= h.fence or processed_on ~= h.processedOn then return nil end
  return { fence = G.count_of(fence), processed_on = G.count_of(processed_on), deadline = G.count_of(deadline),
    limit = G.count_of(limit), expiry = expiry, entry = entry, owner = owner }
end

-- Return the lease of a job, nil if it is not leased now; and its record.
L.of = function(q, id)
  if not G.state_of(q, id) then return nil end
  local h = G.job_of(q, id)
  return L.current(h), h
end

local function text_of(lease)
  return table.concat({ G.int(lease.fence), G.int(lease.processed_on), G.int(lease.deadline), G.int(lease.limit),
    lease.expiry, lease.entry, lease.owner }, '|')
end

-- A deadline more than a day ahead is invalid, and over.
local function is_over(lease, now) return lease.deadline <= now or lease.deadline > now + G.DAY_MS end

-- ------------------------------------------------------------------ expiry

local function whole(value, most)
  return type(value) == 'number' and value >= 0 and value <= most and math.floor(value) or 0
end

-- Return the delay of the next attempt. Only a worker has the strategies of other types, and random numbers.
local function backoff_of(opts, attempts)
  local backoff = type(opts.backoff) == 'table' and opts.backoff or {}
  local delay, longest = whole(backoff.delay, G.TIME_MAX), whole(backoff.maxDelay, G.TIME_MAX)
  if backoff.type == 'exponential' then delay = delay * 2 ^ math.min(attempts - 1, 40) end
  return math.min(delay, longest > 0 and longest or 10 * 365 * G.DAY_MS)
end

-- Fail the attempt, as a worker would have reported it. It gets a new token, so that a later report is rejected.
local function fail_attempt(q, run, id, lease, reason, kind)
  local key = q.J .. id
  local stored = G.pick(key, 'opts', 'attemptsMade', 'stacktrace')
  local opts, attempts = G.json(stored.opts), G.count_of(stored.attemptsMade) + 1
  local row = { KINDS.failed, id, lease.entry, lease.fence, lease.processed_on, reason, kind, stored.stacktrace or '[]',
    whole(opts.attempts, 1000000), backoff_of(opts, attempts), G.rule_of(opts.removeOnFail),
    type(opts.fallbacks) == 'table' and 1 or 0 }
  if G.first(G.finish(q, run.fetching, { row }, run.quiet, run.no_metrics)) == G.FAILED then
    run.failed[#run.failed + 1] = id
  else
    run.recovered[#run.recovered + 1] = id
  end
  if redis.call('HEXISTS', key, 'state') == 1 then G.bump(key, 'fence') end
end

-- Make the job ready at once and count a stall and an attempt, or fail it after its last attempt or stall.
local function stall_attempt(q, run, id, h, lease)
  local key = q.J .. id
  local stored = G.pick(key, 'opts', 'attemptsMade', 'discarded')
  local stalls, reason = G.bump(key, 'stalledCount'), nil
  if stored.discarded or G.count_of(stored.attemptsMade) + 1 >= whole(G.json(stored.opts).attempts, 1000000) then
    reason = G.failures.LAST_ATTEMPT
  elseif stalls >= (G.stalled_policy.of_queue(q, run).max_stalled or L.MAX_STALLS) then
    reason = G.failures.LAST_STALL
  end
  if not run.quiet then G.emit(q.events, 'stalled', id) end
  G.end_stalled(q, run, id, lease.entry, h, reason, '')
  if redis.call('HEXISTS', key, 'state') == 1 then G.bump(key, 'attemptsMade') end
end

-- End a lease that is over. run: {now, max_stalled, quiet, recovered, failed [, fetching, no_metrics]}.
local function expire(q, run, id, h, lease)
  run.fetching = run.fetching or G.fetching(q, run.now, '', run.quiet)
  run.fetching.settings = run.fetching.settings or (G.settings(q))
  if lease.limit > 0 and lease.limit <= run.now then
    fail_attempt(q, run, id, lease, 'timed out after ' .. G.int(lease.limit - lease.processed_on) .. ' ms', TIMEOUT)
  elseif lease.expiry == FAILS then
    fail_attempt(q, run, id, lease, 'the lease expired', EXPIRY)
  elseif lease.expiry == STALLS then
    stall_attempt(q, run, id, h, lease)
  else
    G.recover_job(q, run, id, lease.entry, h, 1, '')
  end
  redis.call('ZREM', q.leases, id)
  G.promote_groups(q, run.fetching)
end

-- Return whether the job is or was leased: then its deadline decides, and if it is over the job is recovered now.
-- entry: where it was found.
L.is_leased = function(q, run, id, entry, h)
  local lease = L.current(h)
  if not lease or lease.entry ~= entry then return false end
  if is_over(lease, run.now) then expire(q, run, id, h, lease) end
  return true
end

-- Return the ids of leases that are over, the oldest first, `most` at most.
local function expired(q, now, most)
  local found = redis.pcall('ZRANGEBYSCORE', q.leases, '-inf', G.time_text(now), 'LIMIT', 0, most)
  if not found.err then return found end
  G.raise_denied(found)
  return {}
end

-- End those of the leases that are over. run: see `expire`.
local function recover(q, run, ids)
  for _, id in ipairs(ids) do
    local lease, h = L.of(q, id)
    if not lease then
      redis.call('ZREM', q.leases, id)
    elseif is_over(lease, run.now) then
      expire(q, run, id, h, lease)
    else
      redis.call('ZADD', q.leases, G.int(lease.deadline), id)
    end
  end
end

-- After a step of the clock: bring the deadline of a lease that began before it forward. Return it.
L.latest = function(q, id, at, now, back)
  local lease = L.of(q, id)
  if not lease or lease.processed_on <= now or lease.deadline < lease.processed_on then return at end
  lease.deadline, lease.limit = lease.deadline - back, math.max(0, lease.limit - back)
  G.set(q, id, 'lastActive', G.int(lease.deadline), 'lease', text_of(lease))
  return lease.deadline
end

-- End leases that are over, the oldest first, `most` at most.
L.recover_expired = function(q, run, most) recover(q, run, expired(q, run.now, most)) end

-- ------------------------------------------------------------------ pages

-- ------------------------------------------------------------------ consistency

-- Return whether a member should have been removed: a fetch or a recovery removes it soon after its deadline.
L.is_overdue = function(q, id, now)
  local at = tonumber(redis.call('ZSCORE', q.leases, id))
  return at ~= nil and (at < now - G.DAY_MS or at > now + G.DAY_MS)
end

-- Return whether the job is leased, but not in the set.
L.is_unlisted = function(q, id, h)
  return L.current(h) ~= nil and not redis.call('ZSCORE', q.leases, id)
end

-- Add such a job to the set. Return whether it was one.
L.list_again = function(q, id, h)
  if not L.is_unlisted(q, id, h) then return false end
  redis.call('ZADD', q.leases, G.int(L.current(h).deadline), id)
  return true
end

local function run_of(fetching)
  return { now = fetching.now, max_stalled = L.MAX_STALLED, quiet = fetching.quiet, recovered = {}, failed = {},
    fetching = fetching, no_metrics = fetching.no_metrics }
end

-- ------------------------------------------------------------------ in an exchange

local function expiry_of(number) return number == 1 and FAILS or number == 2 and STALLS or '0' end

-- leasing: the row of the request. Return the state of the leases of this call. deadline, head and tail: see
-- `start_without_times`; named here so that the table need not grow.
L.settings = function(leasing)
  return { owner = leasing[LEASING.owner], lock = leasing[LEASING.lock], expiry = expiry_of(leasing[LEASING.expiry]),
    limits = leasing[LEASING.limits] or {}, started = {}, deadline = false, head = false, tail = false }
end

-- Before the reports are processed: attempts whose timeout has passed fail, so that their reports are rejected.
L.end_timed_out = function(q, fetching, finished)
  local limits = fetching.lease.limits
  if #limits == 0 then return end
  for i = 1, math.min(#limits, #finished) do
    if limits[i] > 0 and limits[i] <= fetching.now then
      local id = finished[i][REPORT.id]
      local lease, h = L.of(q, id)
      if lease and is_over(lease, fetching.now) then expire(q, run_of(fetching), id, h, lease) end
    end
  end
end

-- After the reports: remove what has ended from the set, and recover expired leases before others are fetched.
L.reported = function(q, fetching, finished, statuses, want)
  local ids, n, stale = {}, 0, G.STALE
  for i = 1, #finished do
    if statuses[i] ~= stale then
      n = n + 1
      ids[n] = finished[i][ID]
    end
  end
  if n > 0 then redis.call('ZREM', q.leases, unpack(ids)) end
  if want <= 0 then return end
  if not G.uses_feature(fetching.settings, L.FEATURE) then G.use_feature(q, L.FEATURE) end
  local over = expired(q, fetching.now, math.min(math.max(want, EXPIRED_PER_CALL), EXPIRED_MAX))
  if #over > 0 then recover(q, run_of(fetching), over) end
end

-- Return whether the options may contain a `timeout` or a `lockDuration`. Hot: a search stops at each place of the first
-- letter, so it is for the end of the name that begins with a rare one.
local function may_have_times(opts)
  local find = string.find
  return opts ~= '{}' and (find(opts, 'meout"', 1, true) or find(opts, 'kDuration"', 1, true)) ~= nil
end

-- Return the job's `timeout` and its `lockDuration`, ms; 0 = none.
local function own_times(opts)
  if not may_have_times(opts) then return 0, 0 end
  local own = G.json(opts)
  local lock = whole(own.lockDuration, G.DAY_MS)
  return whole(own.timeout, G.DAY_MS * 3650), lock >= SHORTEST_LOCK_MS and lock or 0
end

-- Return the duration of a lock: that of the caller, at most that of the job.
local function shorter(lock, own_lock) return own_lock > 0 and math.min(lock, own_lock) or lock end

-- As L.start, of the first attempt of a job without a timeout and a lock duration: but for the entry the same for all of
-- a call. Hot.
local function start_without_times(fetching, id, entry)
  local settings = fetching.lease
  local deadline, started = settings.deadline, settings.started
  if not deadline then
    deadline = G.time_text(fetching.now + settings.lock)
    settings.deadline, settings.tail = deadline, '|' .. settings.owner
    settings.head = '1|' .. fetching.now_text .. '|' .. deadline .. '|0|' .. settings.expiry .. '|'
  end
  local n = #started
  started[n + 1], started[n + 2] = deadline, id
  return settings.head .. entry .. settings.tail, deadline
end

-- The job gets the token (fence, fetching.now). Return its `lease` and its `lastActive`.
L.start = function(fetching, id, entry, fence, opts)
  local settings, timeout, own_lock = fetching.lease, own_times(opts)
  if timeout == 0 and own_lock == 0 and fence == 1 then return start_without_times(fetching, id, entry) end
  local limit = timeout > 0 and fetching.now + timeout or 0
  local deadline = fetching.now + shorter(settings.lock, own_lock)
  if limit > 0 then deadline = math.min(deadline, limit) end
  local lease, text = text_of({ fence = fence, processed_on = fetching.now, deadline = deadline, limit = limit,
    expiry = settings.expiry, entry = entry, owner = settings.owner }), G.int(deadline)
  local started = settings.started
  started[#started + 1] = text
  started[#started + 1] = id
  return lease, text
end

-- The same for a plain job (core/fetch_plain.lua), whose attempt is the first. Hot.
L.start_plain = function(fetching, id, entry, opts)
  if may_have_times(opts) then return L.start(fetching, id, entry, 1, opts) end
  return start_without_times(fetching, id, entry)
end

-- At the end of the call: one write for all its leases.
L.store = function(q, fetching)
  local started = fetching.lease.started
  if #started == 0 then return end
  G.add_members(redis.call, q.leases, started)
end

-- ------------------------------------------------------------------ extending

-- job: id, fence, processed_on. Return the status, and the new deadline (0 if the lease is lost).
L.extend = function(q, now, id, fence, processed_on, duration)
  local key = q.J .. id
  local rejected, revoked, text, opts = G.read_attempt(key, fence, processed_on, NO_END, 'revoked', 'lease', 'opts')
  if rejected then return rejected, 0 end
  local lease = L.current({ state = 'active', fence = G.int(fence), processedOn = G.int(processed_on), lease = text })
  if not lease then return G.STALE, 0 end
  if lease.limit > 0 and lease.limit <= now then
    L.recover_expired(q, { now = now, max_stalled = L.MAX_STALLED, recovered = {}, failed = {} }, EXPIRED_PER_CALL)
    return G.STALE, 0
  end
  local _, own_lock = own_times(opts or '{}')
  lease.deadline = now + shorter(duration, own_lock)
  if lease.limit > 0 then lease.deadline = math.min(lease.deadline, lease.limit) end
  local deadline = G.int(lease.deadline)
  redis.call('ZADD', q.leases, deadline, id)
  redis.call('HSET', key, 'lastActive', deadline, 'lease', text_of(lease))
  return revoked == '1' and G.REVOKED or G.OK, lease.deadline
end
