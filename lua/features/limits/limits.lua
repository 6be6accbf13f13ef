-- Limit fetching for the whole queue: pause, global concurrency, rate limit. Permits are consumed only by jobs that are
-- fetched, in the same call.

local FIELDS = { 'features', 'paused', 'globalConcurrency', 'rateLimitMax', 'rateLimitDuration', 'schedulesRev',
  'sideKeys', 'resultsKept', 'wakeChannels', 'temporaryLimits',
  'timeline', 'metricsByName', 'tellsStarts', 'clockSeen' }
local AT = G.positions(FIELDS)
local PAUSED, CONCURRENCY, RATE_MAX, RATE_MS = AT.paused, AT.globalConcurrency, AT.rateLimitMax, AT.rateLimitDuration
local REVISION, SIDE_KEYS, RESULTS_KEPT = AT.schedulesRev, AT.sideKeys, AT.resultsKept
local TEMPORARY, FEATURES, CHANNELS = AT.temporaryLimits, AT.features, AT.wakeChannels
local TIMELINE, TELLS_STARTS, BY_NAME, CLOCK_SEEN = AT.timeline, AT.tellsStarts, AT.metricsByName, AT.clockSeen
local LIMITER, TOKENS = G.rows.limiter, G.rows.tokens

-- Read the settings of the queue, once per exchange, and end the limits whose time to live is over. Return them for
-- G.limits, and the error reply if the queue uses an unknown feature. A foreign key in place of the hash fails the call
-- only where the settings are needed. now: nil = do not look whether the clock was set back.
G.settings = function(q, now)
  local settings = redis.pcall('HMGET', q.meta, unpack(FIELDS))
  if settings.err then G.raise_denied(settings) end
  local features, unknown = G.features_of(settings[FEATURES])
  q.channels, q.timeline = settings[CHANNELS] or false, settings[TIMELINE] or false
  q.tells_starts = settings[TELLS_STARTS] or false
  G.fair.note(q, features)
  G.fair.note_names(q, features)
  local rejected = unknown and G.unknown_feature_error(q.meta, unknown) or nil
  if now and not (rejected or settings.err) then G.check_clock(q, settings[CLOCK_SEEN], now) end
  local temporary = not rejected and settings[TEMPORARY] and G.limit_ttl.read(settings[TEMPORARY])
  if temporary and G.limit_ttl.expire(q, temporary, G.now(q)) then
    settings = redis.call('HMGET', q.meta, unpack(FIELDS))
  end
  return settings, rejected
end

local function checked(settings)
  if settings.err then error(settings.err, 0) end
  return settings
end

-- Return whether the queue lists a feature.
G.uses_feature = function(settings, feature)
  return not settings.err and G.features_of(settings[FEATURES])[feature] == true
end

-- Return whether jobs of the queue may have keys besides their record (G.mark_side_keys).
G.may_have_side_keys = function(settings) return settings.err or settings[SIDE_KEYS] end

-- Return whether finished jobs get numbers (features/results).
G.numbers_results = function(settings) return settings[RESULTS_KEPT] and true or false end

-- Return the text of the figures per job name; false or nil if the queue keeps none.
G.by_name_setting = function(settings) return not settings.err and settings[BY_NAME] end

G.has_concurrency = function(settings) return checked(settings)[CONCURRENCY] and true or false end

-- Return the number of active jobs of all workers.
G.active_count = function(q)
  local listed = math.max(redis.call('ZCARD', q.list_heartbeats), G.count_of(redis.call('GET', q.list_active)))
  return G.pending_count(q, G.GROUP) + listed
end

-- Return the permits left in the fixed window, and ms until the next one begins.
local function window(q, rate, now)
  local start, count = unpack(redis.call('HMGET', q.rate, 'windowStart', 'count'))
  start, count = G.num(start), G.num(count)
  if G.window_is_over(start, rate.duration, now) then
    rate.start, rate.count = now, 0
  else
    rate.start, rate.count = start, count
  end
  return rate.max - rate.count, rate.start + rate.duration - now
end

-- Return how many jobs were fetched in the current window of a rate, and ms until the next one begins; 0, 0 between two
-- windows and without a rate.
G.rate_use = function(q, max, duration, now)
  if max <= 0 or duration <= 0 then return 0, 0 end
  local rate = { max = max, duration = duration }
  local _, left = window(q, rate, now)
  if rate.count == 0 then return 0, 0 end
  return rate.count, left
end

local function reduce_want(limits, fetching, left, wait)
  limits.want = math.max(0, left)
  G.note_due(fetching, wait)
end

local function limit_concurrency(q, limits, text)
  local concurrency = G.count_of(text)
  if concurrency > 0 then
    limits.concurrency = concurrency
    limits.want = math.min(limits.want, math.max(0, concurrency - G.active_count(q)))
  end
end

-- Return the limits of this fetch: paused, want (how many may be fetched), limited, and the rate whose permits are
-- consumed. limiter: {max, duration} of the worker, or false; a limit set for the queue has precedence. tokens: {max,
-- duration} or nil.
-- settings: see G.settings.
G.limits = function(q, fetching, want, limiter, tokens, settings)
  local meta = checked(settings)
  local limits = { paused = meta[PAUSED] == '1', want = want, limited = false }
  -- This call may have written a later revision.
  if meta[REVISION] and not rawget(q, 'schedulers_flag') then
    q.schedulers_flag = G.schedulers_flag(meta[REVISION])
  end
  local temporary = meta[TEMPORARY] and G.limit_ttl.read(meta[TEMPORARY])
  limit_concurrency(q, limits, meta[CONCURRENCY])
  local max, duration = G.num(meta[RATE_MAX]), G.duration(meta[RATE_MS])
  if max <= 0 and limiter then max, duration = limiter[LIMITER.max], limiter[LIMITER.duration] end
  if max > 0 and duration > 0 then
    local rate = { max = max, duration = duration }
    local left, wait = window(q, rate, fetching.now)
    limits.rate = rate
    if left < limits.want then reduce_want(limits, fetching, left, wait) end
  end
  local tokens_wait = tokens and G.tokens_spent(q, tokens[TOKENS.max], tokens[TOKENS.duration], fetching.now)
  if tokens_wait then reduce_want(limits, fetching, 0, tokens_wait) end
  limits.limited = limits.want < want
  local ends_in = temporary and G.limit_ttl.next_end(temporary, fetching.now)
  G.note_due(fetching, ends_in or -1)
  return limits
end

-- Consume permits for the `taken` jobs.
G.spend = function(q, limits, taken)
  local rate = limits.rate
  if not rate or taken == 0 then return end
  redis.call('HSET', q.rate, 'windowStart', G.int(rate.start), 'count', G.int(rate.count + taken))
end

local PAUSED_FLAG, EXHAUSTED, LIMITED = 1, 2, 4

-- Fetch at most what the limits allow, by fetch(q, fetching, want). Return the flags of an exchange.
G.fetch_within = function(q, fetching, limits, fetch)
  if limits.paused then return PAUSED_FLAG end
  local flags = 0
  if limits.want > 0 then
    if fetch(q, fetching, limits.want) then flags = EXHAUSTED end
    G.spend(q, limits, #fetching.jobs)
  end
  return flags == 0 and limits.limited and #fetching.jobs == limits.want and LIMITED or flags
end

-- ------------------------------------------------------------------ tokens
-- Count the tokens reported by jobs, in windows of fixed length: one counter per window, which expires by itself. A
-- worker with a token limit checks the counter before it fetches, and adds its jobs' tokens when they end.

local function counter(q, duration, now)
  return q.P .. 'tpm:' .. G.int(math.floor(now / duration))
end

-- tokens: one number per finished row. Rows already reported by an earlier call are not counted again.
G.count_tokens = function(q, duration, now, tokens, statuses)
  local sum = 0
  for i = 1, #statuses do
    if G.has_ended(statuses[i]) then sum = sum + G.num(tokens[i]) end
  end
  if sum == 0 then return end
  local key = counter(q, duration, now)
  local counted = G.pcall('INCRBY', key, G.int(sum))
  if counted == sum then G.record_temporary(q, string.sub(key, #q.P + 1), now, duration) end
  if G.must_restart(counted) then redis.call('SET', key, G.int(sum)) end
  redis.call('PEXPIRE', key, G.int(duration))
end

-- Return ms until the next window if this one has no tokens left, else nil.
G.tokens_spent = function(q, max, duration, now)
  if G.num(redis.call('GET', counter(q, duration, now))) < max then return nil end
  return duration - now % duration
end
