-- Read numbers from fields and scores that any client may have clamped, and format numbers as text.
-- All checks whether a number is usable are in this file. An unusable number (not a number, not finite, out of range)
-- is replaced by a default or the nearest value in range. So it is never clamped again, and no loop, wait or
-- comparison depends on it.

local LARGEST = 9007199254740991 -- 2^53 - 1
local TEXT_LIMIT = 18014398509481984 -- 2^54: scores of the last priority are slightly above 2^53

-- Scheduled score: priority * 2^42 + time in ms (docs/reference/data-model.md, "Scores in P:scheduled").
G.BAND = 4398046511104
-- The latest time that a score can hold (in the year 2109), and the last priority that peers may write.
G.TIME_MAX = G.BAND - 1
G.PRIORITY_MAX = 2048
G.DAY_MS = 86400000
local MOMENT_MS = 1000

local SCHEDULED_END = (G.PRIORITY_MAX + 1) * G.BAND

-- Return a finite number: 0 for NaN, and the limit for a larger number.
local function clamped(n)
  if n >= -TEXT_LIMIT and n <= TEXT_LIMIT then return n end
  if n > TEXT_LIMIT then return TEXT_LIMIT end
  return n < -TEXT_LIMIT and -TEXT_LIMIT or 0
end

-- The texts of the numbers from 0 to 99, and the last two digits of larger ones: formatting a number costs more than all
-- else that an id needs.
local SMALL, TWO_DIGITS = {}, {}
for n = 0, 99 do SMALL[n], TWO_DIGITS[n] = n .. '', (n - n % 10) / 10 .. n % 10 end

-- Lua's tostring keeps only 14 digits; ids and times need all of theirs.
-- (%d is twice as fast as %.0f.)
G.int = function(n)
  local small = SMALL[n]
  if small then return small end
  if n % 1 == 0 and n >= -TEXT_LIMIT and n <= TEXT_LIMIT then return string.format('%d', n) end
  return string.format('%.0f', clamped(n))
end

-- Return the texts of the `count` integers that follow `after`, which is 0 or more.
G.texts_after = function(after, count)
  local found, head = {}, nil
  for i = 1, count do
    local n = after + i
    local last = n % 100
    if n < 100 then
      found[i] = G.int(n)
    else
      if last == 0 or not head then head = G.int((n - last) / 100) end
      found[i] = head .. TWO_DIGITS[last]
    end
  end
  return found
end

-- The text of a time in ms, as G.int returns it. Calls of one moment, and the report of a job soon after its fetch,
-- format all but the last two digits once.
local HEADS_KEPT = 64
local heads, heads_count = {}, 0

G.time_text = function(ms)
  local last = ms % 100
  local tail = TWO_DIGITS[last] -- nil for a fraction, infinity and NaN
  if not tail or ms < 100 or ms > LARGEST then return G.int(ms) end
  local hundreds = ms - last
  local head = heads[hundreds]
  if not head then
    head = G.int(hundreds / 100)
    if heads_count >= HEADS_KEPT then heads, heads_count = {}, 0 end
    heads[hundreds], heads_count = head, heads_count + 1
  end
  return head .. tail
end

-- Format a number as peers do: integers with all their digits.
G.text = function(n)
  n = clamped(n)
  return n == math.floor(n) and string.format('%.0f', n) or tostring(n)
end

G.score = function(n)
  n = clamped(n)
  return string.format(n == math.floor(n) and '%.0f' or '%.17g', n)
end

-- The first score above those of the scheduled set, and the same as an exclusive range end. (string.format is not
-- available while a library loads.)
G.SCHEDULED_END = '9011597301252096'
G.BELOW_SCHEDULED_END = '(9011597301252096'

-- Return a finite number, or the default.
G.num = function(text, default)
  local n = tonumber(text)
  if not n or n ~= n or n == math.huge or n == -math.huge then return default or 0 end
  return n
end

-- Return a non-negative integer from a hash field, or the default if the field is absent or unusable.
G.count_of = function(text, default)
  local n = text and tonumber(text)
  if not n or n ~= n or n < 0 or n > LARGEST then return default or 0 end
  return math.floor(n)
end

-- Return a duration in ms: 0 if it is unusable, the longest possible one if it is infinite.
G.duration = function(value)
  local n = tonumber(value)
  if not n or n ~= n or n == -math.huge then return 0 end
  return math.min(n, G.TIME_MAX)
end

-- Return a time in epoch ms, from 0 to TIME_MAX.
G.clamped_time = function(value)
  if type(value) == 'number' and value >= 0 and value <= G.TIME_MAX then return value end
  return math.max(0, G.duration(value))
end

-- Return a time that was clamped in the past. Nil if it is unusable or more than a day ahead of the clock.
G.past_time = function(value, now)
  local n = G.num(value, -1)
  return n >= 0 and n <= now + G.DAY_MS and n or nil
end

-- Return whether a window that began at `start` is over. So it is if it began in the future, more than a moment: the
-- clock was set back.
G.window_is_over = function(start, duration, now)
  local elapsed = now - start
  return elapsed >= duration or elapsed < -math.min(duration, MOMENT_MS)
end

-- Return a priority from 0 to PRIORITY_MAX: 0 if it is unusable, the last one if it is out of range.
G.priority_of = function(value) return value == 0 and 0 or math.min(G.count_of(value), G.PRIORITY_MAX) end

-- Return the score, as text, of a job of this priority that is due at `at`.
G.scheduled_score = function(priority, at)
  return G.score(G.priority_of(priority) * G.BAND + G.clamped_time(at))
end

-- Return the priority and time of a scheduled score; nil for a score that the set cannot hold. A score below 0 is due
-- (peers accept negative priorities and delays).
G.band_of = function(score)
  local n = tonumber(score)
  if not n or n >= SCHEDULED_END then return nil end
  if n < 0 then return 0, 0 end
  local band = math.floor(n / G.BAND)
  return band, n - band * G.BAND
end

-- Return the start of the score range of a priority.
G.band_start = function(band) return band <= 0 and '-inf' or G.int(band * G.BAND) end

-- ------------------------------------------------------------------ counters

local function is_counter_error(reply)
  return type(reply) == 'table' and reply.err
    and (string.find(reply.err, 'not an integer', 1, true) or string.find(reply.err, 'overflow', 1, true)
      or string.find(reply.err, 'not a valid', 1, true) or string.find(reply.err, 'not a float', 1, true)
      or string.find(reply.err, 'NaN', 1, true))
end

-- Return whether a counter must restart, given the reply to its increase. Other errors are raised.
G.must_restart = function(reply)
  if type(reply) == 'number' then return reply < -LARGEST or reply > LARGEST end
  if is_counter_error(reply) then return true end
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return false
end

-- HINCRBY that restarts a field with an unusable value, so that one bad record cannot block its callers.
G.bump = function(key, field, by)
  by = by or 1
  local n = G.pcall('HINCRBY', key, field, G.int(by))
  if not G.must_restart(n) then return n end
  n = math.max(0, by)
  redis.call('HSET', key, field, G.int(n))
  return n
end

-- The same for amounts with a fraction.
G.add_amount = function(key, field, amount)
  local reply = G.pcall('HINCRBYFLOAT', key, field, string.format('%.17g', G.num(amount)))
  if G.must_restart(reply) then redis.call('HSET', key, field, G.text(math.max(0, G.num(amount)))) end
end

-- ------------------------------------------------------------------ scores

-- Return ms until the first time of a sorted set, if it is below `limit`; 0 = it has passed, -1 = there is none.
G.until_first = function(key, now, limit)
  local _, score = G.member_at(key, 0)
  local at = tonumber(score)
  return at and at < (limit or math.huge) and math.max(0, at - now) or -1
end

-- Return the shorter of two waits, of which -1 is none.
G.earlier = function(a, b)
  if a < 0 or (b >= 0 and b < a) then return b end
  return a
end

-- Remember in how many ms the next jobs may be ready, for the reply of an exchange; negative = unknown.
G.note_due = function(fetching, wait) fetching.next_due = G.earlier(fetching.next_due, wait) end

local REPAIRS_MAX = 20

-- Give members of a sorted set with scores above `latest` the score `at`, at most REPAIRS_MAX per call: such a time
-- never comes.
G.repair_times = function(key, latest, at)
  local found = G.pcall('ZRANGEBYSCORE', key, '(' .. G.int(latest), '+inf', 'LIMIT', 0, REPAIRS_MAX)
  if found.err then return end
  for _, member in ipairs(found) do redis.call('ZADD', key, G.int(at), member) end
end

local REMOVALS_MAX = 100

-- Remove members of a sorted set with scores up to `latest`, the oldest first, at most REMOVALS_MAX per call.
G.remove_older = function(key, latest)
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', G.int(latest), 'LIMIT', 0, REMOVALS_MAX)
  if #found > 0 then redis.call('ZREM', key, unpack(found)) end
end
