-- Numbers: reading them from fields and scores that anybody may have written, and writing them as text.
-- No other file judges whether a number can be used. What cannot (no number, not finite, out of range) is a default or
-- the nearest value in range, so nothing of it is ever written again, and no loop, wait or comparison depends on it.

local LARGEST = 9007199254740991 -- 2^53 - 1
local TEXT_LIMIT = 18014398509481984 -- 2^54: scores of the last priority are a little above 2^53

-- Scheduled score: priority * 2^42 + time in ms (data-model.md section 7).
G.BAND = 4398046511104
-- The latest time that a score can hold (in the year 2109), and the last priority that peers may write.
G.TIME_MAX = G.BAND - 1
G.PRIORITY_MAX = 2048
G.DAY_MS = 86400000

local SCHEDULED_END = (G.PRIORITY_MAX + 1) * G.BAND

-- What is written is finite: not a number becomes 0, and what is too large the limit.
local function written(n)
  if n >= -TEXT_LIMIT and n <= TEXT_LIMIT then return n end
  if n > TEXT_LIMIT then return TEXT_LIMIT end
  return n < -TEXT_LIMIT and -TEXT_LIMIT or 0
end

-- Lua's tostring keeps 14 digits only; ids and times need all of theirs.
G.int = function(n) return string.format('%.0f', written(n)) end

-- Numbers as a peer writes them: whole ones with all their digits.
G.text = function(n)
  n = written(n)
  if n == math.floor(n) then return string.format('%.0f', n) end
  return tostring(n)
end

G.score = function(n)
  n = written(n)
  if n == math.floor(n) then return string.format('%.0f', n) end
  return string.format('%.17g', n)
end

-- The first score beyond those that the scheduled set can have, and the same as the end of a range. (Nothing can be
-- formatted while a library loads.)
G.SCHEDULED_END = '9011597301252096'
G.BELOW_SCHEDULED_END = '(9011597301252096'

-- A finite number, or the default.
G.num = function(text, default)
  local n = tonumber(text or '')
  if not n or n ~= n or n == math.huge or n == -math.huge then return default or 0 end
  return n
end

-- A whole non-negative number from a hash field, or the default where the field is absent or junk.
G.count_of = function(text, default)
  local n = text and tonumber(text)
  if not n or n ~= n or n < 0 or n > LARGEST then return default or 0 end
  return math.floor(n)
end

-- A length of time in ms: junk is 0, one that never ends is the longest that there is.
G.duration = function(value)
  local n = tonumber(value or '')
  if not n or n ~= n or n == -math.huge then return 0 end
  return math.min(n, G.TIME_MAX)
end

-- A time in epoch ms, from 0 to TIME_MAX.
G.clamped_time = function(value) return math.max(0, G.duration(value)) end

-- A time that was written in the past, or nil: junk, and what is more than a day ahead of the clock, is no such time.
G.past_time = function(value, now)
  local n = G.num(value, -1)
  return n >= 0 and n <= now + G.DAY_MS and n or nil
end

-- Whether a window that began at `start` is over. One that begins later than the next would is none.
G.window_is_over = function(start, duration, now)
  local elapsed = now - start
  return elapsed >= duration or elapsed < -duration
end

-- A priority from 0 to PRIORITY_MAX: junk is none, one out of range the last.
G.priority_of = function(value) return math.min(G.count_of(value), G.PRIORITY_MAX) end

-- The score, as text, of a job of this priority that is due at `at`.
G.scheduled_score = function(priority, at)
  return G.score(G.priority_of(priority) * G.BAND + G.clamped_time(at))
end

-- Priority and time of a scheduled score; nil for one that the set cannot have. What is below 0 is due (peers accept
-- negative priorities and delays).
G.band_of = function(score)
  local n = tonumber(score or '')
  if not n or n >= SCHEDULED_END then return nil end
  if n < 0 then return 0, 0 end
  local band = math.floor(n / G.BAND)
  return band, n - band * G.BAND
end

-- Where a range of the scheduled set begins that is to have all of a priority.
G.band_start = function(band) return band <= 0 and '-inf' or G.int(band * G.BAND) end

-- ------------------------------------------------------------------ counters

local function cannot_count(reply)
  return type(reply) == 'table' and reply.err
    and (string.find(reply.err, 'not an integer', 1, true) or string.find(reply.err, 'overflow', 1, true)
      or string.find(reply.err, 'not a valid', 1, true) or string.find(reply.err, 'not a float', 1, true)
      or string.find(reply.err, 'NaN', 1, true))
end

-- Whether a counter has to begin anew, judged by the reply to its increase. Other errors are raised.
G.must_restart = function(reply)
  if type(reply) == 'number' then return reply < -LARGEST or reply > LARGEST end
  if cannot_count(reply) then return true end
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return false
end

-- HINCRBY; a field that holds junk starts anew, so that one bad record cannot stop whoever counts.
G.bump = function(key, field, by)
  by = by or 1
  local n = redis.pcall('HINCRBY', key, field, G.int(by))
  if not G.must_restart(n) then return n end
  n = math.max(0, by)
  redis.call('HSET', key, field, G.int(n))
  return n
end

-- The same for amounts that may have a fraction.
G.add_amount = function(key, field, amount)
  local reply = redis.pcall('HINCRBYFLOAT', key, field, string.format('%.17g', G.num(amount)))
  if G.must_restart(reply) then redis.call('HSET', key, field, G.text(math.max(0, G.num(amount)))) end
end

-- ------------------------------------------------------------------ scores

local REPAIRS_MAX = 20

-- Members of a sorted set whose scores are beyond `latest` get the score `at`, a few a call: such a time never comes.
G.repair_times = function(key, latest, at)
  local found = redis.pcall('ZRANGEBYSCORE', key, '(' .. G.int(latest), '+inf', 'LIMIT', 0, REPAIRS_MAX)
  if found.err then return end
  for _, member in ipairs(found) do redis.call('ZADD', key, G.int(at), member) end
end
