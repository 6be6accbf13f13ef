-- The server API that functions use, except for the codecs. Run once per in-memory server.
-- From Python: execute(command, ...) -> ok, reply | error text.
-- luacheck: ignore 121 122
local execute = ...

-- The library is most of the memory: each collection visits it, so collections are rare.
collectgarbage('setpause', 400)

local functions = {}

redis = {}

redis.call = function(name, ...)
  local ok, reply = execute(name, ...)
  if ok then return reply end
  error({ err = reply }, 0)
end

redis.pcall = function(name, ...)
  local ok, reply = execute(name, ...)
  if ok then return reply end
  return { err = reply }
end

redis.error_reply = function(text)
  if not string.find(text, '^%u+ ') then text = 'ERR ' .. text end
  return { err = text }
end

redis.status_reply = function(text) return { ok = text } end

redis.setresp = function() end

redis.log = function() end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3

redis.register_function = function(given, callback)
  if type(given) == 'table' then
    functions[given.function_name] = given.callback
  else
    functions[given] = callback
  end
end

server = redis

-- Format an error as a server does: the text, and the line in the library.
local function describe(name)
  return function(problem)
    local text = type(problem) == 'table' and tostring(problem.err) or 'ERR ' .. tostring(problem)
    for level = 2, 30 do
      local frame = debug.getinfo(level, 'Sl')
      if not frame then break end
      if frame.source == '@user_function' then
        return text .. ' script: ' .. name .. ', on @user_function:' .. frame.currentline .. '.'
      end
    end
    return text .. ' script: ' .. name
  end
end

local function load_library(code)
  local chunk, problem = loadstring(code, '@user_function')
  if not chunk then error(problem, 0) end
  chunk()
end

-- Return the library as bytecode, which is loaded in a fraction of the time.
local function compile_library(code)
  return string.dump(assert(loadstring(code, '@user_function')))
end

local function run(name, keys, args)
  local callback = functions[name]
  if not callback then return false, 'ERR Function not found' end
  return xpcall(function() return callback(keys, args) end, describe(name))
end

local function list()
  local names = {}
  for name in pairs(functions) do names[#names + 1] = name end
  return names
end

return load_library, compile_library, run, list
