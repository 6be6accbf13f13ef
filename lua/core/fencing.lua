-- Check fencing tokens. Each activation has a token: the job's activation counter (`fence`) and the `processedOn` it
-- wrote. A worker-side call with an outdated token changes nothing (docs/reference/functions.md, "Attempts and
-- fencing").

G.OK, G.ALREADY, G.GONE, G.STALE, G.RETRYING, G.FAILED, G.RELEASED = 0, 1, 2, 3, 4, 5, 6
G.REVOKED, G.DELAYED, G.LIMITED = 7, 8, 9
G.SUSPENDED = 11
G.WAITING_CHILDREN = 10

-- Numbers of appends that an attempt may have in flight, so that those below have run or were given up.
local NUMBERS_KEPT, TEXT_MAX = 64, 2048

-- Return whether the attempt has made this call before; if not, record it. number: counts the calls of the attempt that
-- append (log lines, chunks), from 1; '' = not numbered. Of a message it is `<number> <attempt> <subscription>`, since its
-- record has no fence. The field `appended` of the record is `<fence or attempt> <highest number> <missing number>,...`:
-- of the lower numbers, those have not run.
G.has_appended = function(q, id, fence, number)
  local text, attempt, group = G.match(number, '^(%d+) ?(%S*) ?(.*)$')
  if not text or (fence == 0 and attempt == '') then return false end
  number = tonumber(text)
  local key = q.J .. id
  if attempt == '' then attempt = G.int(fence) else key = G.subscriptions.record_key(q, id, group) end
  local stored = redis.call('HGET', key, 'appended') or ''
  local of, highest, missing = G.match(#stored <= TEXT_MAX and stored, '^(%S+) (%d+) (.*)$')
  if of ~= attempt then highest, missing = 0, '' end
  highest = tonumber(highest)
  if number > highest then
    missing = string.gsub(missing, '(%d+),', function(n) return tonumber(n) <= number - NUMBERS_KEPT and '' or nil end)
    for below = math.min(NUMBERS_KEPT, number - highest) - 1, 1, -1 do
      missing = missing .. G.int(number - below) .. ','
    end
    highest = number
  else
    local before = ',' .. missing
    missing = string.sub(string.gsub(before, ',' .. text .. ',', ',', 1), 2)
    if #missing + 1 == #before then return true end
  end
  local appended = attempt .. ' ' .. G.int(highest) .. ' ' .. missing
  if group == '' then
    redis.call('HSET', key, 'appended', appended)
  else
    G.subscriptions.write_record(q, id, group, 0, 'appended', appended)
  end
  return false
end

-- fence, processed_on: the token of the attempt. ended: states that it may have led to, for a call that is repeated
-- because its reply was lost. state, job_fence, job_processed_on: of the record. Return nil if the attempt is current,
-- else the status to reply.
G.check_attempt = function(fence, processed_on, ended, state, job_fence, job_processed_on)
  if not state then return G.GONE end
  if tonumber(job_fence) ~= fence then return G.STALE end
  if state == 'active' and tonumber(job_processed_on) == processed_on then return nil end
  -- Completing leaves `processedOn` unchanged. After FLUSHALL another job may have the same id and fence.
  if state == 'completed' and tonumber(job_processed_on) ~= processed_on then return G.STALE end
  if ended[state] and job_processed_on then return G.ALREADY end
  return G.STALE
end

local NO_END = {}

-- The same for a call about a job. r: its id and token; fence 0 = not from a worker: the job only has to exist.
G.reject_call = function(q, r)
  local state, fence, processed_on = unpack(redis.call('HMGET', q.J .. r.id, 'state', 'fence', 'processedOn'))
  if state and r.fence == 0 then return nil end
  return G.check_attempt(r.fence, r.processed_on, NO_END, state, fence, processed_on)
end
